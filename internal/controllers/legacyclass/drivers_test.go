package legacyclass

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/millwright-dev/millwright/api/machine/legacy"
	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/registry"
	"github.com/millwright-dev/millwright/driver/sim"
	"github.com/millwright-dev/millwright/driver/status"
)

// migrator converts classes to a provider, counts its calls, and declares kinds as its own.
type migrator struct {
	driver.Driver
	provider string
	kinds    []string
	calls    int
	err      error
}

func (m *migrator) MigratedKinds() []string { return m.kinds }

func (m *migrator) GenerateMachineClassForMigration(_ context.Context, req *driver.GenerateMachineClassForMigrationRequest) (*driver.GenerateMachineClassForMigrationResponse, error) {
	m.calls++
	req.MachineClass.Provider, req.MachineClass.ProviderSpec.Raw = m.provider, []byte(`{"made":true}`)
	return &driver.GenerateMachineClassForMigrationResponse{}, m.err
}

// with starts a controller with several drivers. Others may register if grows is true.
func (w *world) with(grows bool, drivers map[string]driver.Driver) *registry.Registry {
	w.Helper()
	r := registry.New(registry.Options{MayGrow: grows})
	for name, d := range drivers {
		if _, err := r.Register(name, d); err != nil {
			w.Fatal(err)
		}
	}
	w.begin(r)
	return r
}

// annotate names the provider of the legacy class.
func (w *world) annotate(provider string) {
	w.Helper()
	class := get(w, key.Name, &legacy.AWSMachineClass{})
	class.Annotations = map[string]string{legacy.AnnotationProvider: provider}
	if err := w.Update(w.Context(), class); err != nil {
		w.Fatal(err)
	}
}

// TestMigration_ChoosesDriver checks that the driver that declares the kind as its own migrates the class.
func TestMigration_ChoosesDriver(t *testing.T) {
	t.Parallel()
	own := []string{legacy.AWS}
	for name, tc := range map[string]struct {
		drivers   map[string]driver.Driver
		annotated string
		want      string // provider of the class; empty if none is created
		message   string
	}{
		"its own":              {map[string]driver.Driver{"zzz": &migrator{provider: "zzz", kinds: own}, "sim": sim.New(sim.Config{})}, "", "zzz", ""},
		"no provider filled":   {map[string]driver.Driver{"zzz": &migrator{kinds: own}, "sim": sim.New(sim.Config{})}, "", "zzz", ""},
		"the annotation":       {map[string]driver.Driver{"zzz": &migrator{provider: "zzz", kinds: own}, "sim": sim.New(sim.Config{})}, "sim", "sim", ""},
		"two":                  {map[string]driver.Driver{"a": &migrator{provider: "a", kinds: own}, "b": &migrator{provider: "b", kinds: own}}, "", "", `the drivers "a" and "b" each migrate the kind AWSMachineClass; name one in the annotation machine.millwright.dev/provider`},
		"none declares it":     {map[string]driver.Driver{"a": &migrator{provider: "a"}, "b": &migrator{provider: "b"}}, "", "", `no driver migrates the kind AWSMachineClass; this manager has the drivers "a" and "b"; name one in the annotation`},
		"unknown annotation":   {map[string]driver.Driver{"a": &migrator{provider: "a", kinds: own}}, "b", "", `annotation machine.millwright.dev/provider: the class is for driver "b", but this manager has the driver "a"`},
		"for another provider": {map[string]driver.Driver{"a": &migrator{provider: "b", kinds: own}, "b": &migrator{}}, "", "", `the driver "a" created a class for the provider "b", which it does not serve`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, sim.New(sim.Config{}), fleet()...)
			w.with(false, tc.drivers)
			if tc.annotated != "" {
				w.annotate(tc.annotated)
			}
			before := w.dump()
			for range 3 {
				w.mustPass()
			}
			if tc.want != "" {
				if class := get(w, key.Name, &v1alpha1.MachineClass{}); class.Provider != tc.want {
					t.Errorf("provider %q, want %q", class.Provider, tc.want)
				}
				return
			}
			if diff := cmp.Diff(before, w.dump()); diff != "" {
				t.Errorf("changed:\n%s", diff)
			}
			if events := w.takeEvents(); len(events) != 1 || !strings.Contains(events[0], tc.message) || !strings.HasPrefix(events[0], "Warning "+reasonFailed) {
				t.Errorf("events %q, want one with %s", events, tc.message)
			}
		})
	}
}

// TestMigration_WaitsForDriver checks that Machines wait until the driver registers, even if another driver would accept any
// class. That is not a failure with a back-off.
func TestMigration_WaitsForDriver(t *testing.T) {
	t.Parallel()
	w := newWorld(t, sim.New(sim.Config{}), fleet()...)
	r := w.with(true, map[string]driver.Driver{"sim": sim.New(sim.Config{})})
	before := w.dump()
	if result := w.mustPass(); result.RequeueAfter != 0 || w.dump() != before {
		t.Errorf("result %+v; changes: %s", result, cmp.Diff(before, w.dump()))
	}
	if migration, err := w.controller.Migration(t.Context(), key.Namespace, ref()); err != nil || !migration.Pending || migration.Problem == "" {
		t.Errorf("Migration = %+v, %v", migration, err)
	}
	if _, err := r.Register("aws", &migrator{provider: "aws", kinds: []string{legacy.AWS}}); err != nil {
		t.Fatal(err)
	}
	woken := w.controller.waiting(legacy.AWS)(t.Context(), "aws")
	small := key
	small.Name = "small"
	if diff := cmp.Diff([]reconcile.Request{{NamespacedName: key}, {NamespacedName: small}}, woken); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
	w.mustPass()
	if class := get(w, key.Name, &v1alpha1.MachineClass{}); class.Provider != "aws" {
		t.Errorf("provider %q", class.Provider)
	}
	if woken := w.controller.waiting(legacy.AWS)(t.Context(), "aws"); len(woken) != 1 {
		t.Errorf("requests for a later driver: %v", woken)
	}
}

// TestMigration_CallsDriverOnce checks that the driver is called once while a different class has the name and neither
// is edited.
func TestMigration_CallsDriverOnce(t *testing.T) {
	t.Parallel()
	d := &migrator{provider: "sim"}
	taken := &v1alpha1.MachineClass{ObjectMeta: named(key.Name), Provider: "sim", ProviderSpec: runtime.RawExtension{Raw: []byte(`{}`)}}
	w := newWorld(t, d, append(fleet(), taken)...)
	for range 5 {
		w.mustPass()
	}
	if events := w.takeEvents(); d.calls != 1 || len(events) != 1 {
		t.Errorf("%d calls, events %q", d.calls, events)
	}
	class := get(w, key.Name, &v1alpha1.MachineClass{})
	class.ProviderSpec.Raw = []byte(`{"made": true}`)
	if err := w.Update(t.Context(), class); err != nil {
		t.Fatal(err)
	}
	w.mustPass()
	if old := get(w, key.Name, &legacy.AWSMachineClass{}); d.calls != 2 || old.Annotations[legacy.AnnotationMigrated] == "" {
		t.Errorf("%d calls, annotations %v after the edit", d.calls, old.Annotations)
	}
}

// TestMigration_OneEventPerCode checks that different messages with the same code cause one event.
func TestMigration_OneEventPerCode(t *testing.T) {
	t.Parallel()
	d := &migrator{provider: "sim"}
	w := newWorld(t, d, fleet()...)
	for i, code := range []codes.Code{codes.Internal, codes.Internal, codes.Unavailable, codes.Unavailable, codes.Internal} {
		d.err = status.Error(code, fmt.Sprint("request ", i))
		w.mustPass()
		w.clock.Step(time.Hour)
	}
	if events := w.takeEvents(); len(events) != 3 || d.calls != 5 {
		t.Errorf("%d calls, events %q", d.calls, events)
	}
}

// TestIndex_ClassesOfUsers checks that sets and deployments are indexed by their classes.
func TestIndex_ClassesOfUsers(t *testing.T) {
	t.Parallel()
	set := &v1alpha1.MachineSet{}
	set.Spec.Template.Spec.Class = ref()
	older := &v1alpha1.MachineSet{}
	older.Spec.MachineClass = ref()
	both := set.DeepCopy()
	both.Spec.MachineClass = v1alpha1.ClassSpec{Kind: legacy.GCP, Name: "other"}
	current := &v1alpha1.MachineDeployment{}
	current.Spec.Template.Spec.Class = v1alpha1.ClassSpec{Kind: v1alpha1.MachineClassKind, Name: "big"}
	for name, tc := range map[string]struct {
		user client.Object
		want []string
	}{
		"by its template":  {set, []string{"AWSMachineClass/big"}},
		"by the old field": {older, []string{"AWSMachineClass/big"}},
		"by both":          {both, []string{"AWSMachineClass/big", "GCPMachineClass/other"}},
		"of today":         {current, []string{"big"}},
		"of none":          {&v1alpha1.MachineDeployment{}, nil},
	} {
		if diff := cmp.Diff(tc.want, classesOf(tc.user)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestDriver_RegistrationTriggersRetry checks that a driver that was unavailable is called immediately after it registers,
// but one that refused is not.
func TestDriver_RegistrationTriggersRetry(t *testing.T) {
	t.Parallel()
	for code, calls := range map[codes.Code]int{codes.Unavailable: 3, codes.Internal: 2} {
		d := &migrator{provider: "sim"}
		w := newWorld(t, d, fleet()...)
		d.err = status.Error(code, "not now")
		w.mustPass()
		w.clock.Step(time.Hour)
		w.mustPass()
		w.controller.waiting(legacy.AWS)(t.Context(), "aws")
		w.mustPass()
		if d.calls != calls {
			t.Errorf("%v: %d calls, want %d", code, d.calls, calls)
		}
	}
}
