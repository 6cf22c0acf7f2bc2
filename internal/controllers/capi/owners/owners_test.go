package owners

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/record"
	testingclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	fakeclient "sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/fake"
	"github.com/millwright-dev/millwright/driver/registry"
	"github.com/millwright-dev/millwright/driver/sim"
	"github.com/millwright-dev/millwright/internal/controllers/capi/core"
	"github.com/millwright-dev/millwright/internal/lifecycle/orphans"
)

const (
	namespace = "ns"
	period    = 15 * time.Minute
)

// harness is a collector of orphaned VMs with objects of both APIs, and a driver with their VMs.
type harness struct {
	*testing.T
	client    client.WithWatch
	live      client.Client
	driver    *fake.Driver
	clock     *testingclock.FakeClock
	events    *record.FakeRecorder
	collector *orphans.Collector
	// hidden reports whether a list is forbidden by the API server.
	hidden func(client.ObjectList) bool
}

// apis are the APIs that the manager serves.
type apis struct{ mcm, capi bool }

// newHarness returns a harness. If separates is set, its driver keeps the VMs of the two API groups apart.
func newHarness(t *testing.T, separates bool) *harness {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, v1alpha1.AddToScheme, infrav1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	core.AddToScheme(scheme, core.V1Beta2)
	h := &harness{
		T: t, client: fakeclient.NewClientBuilder().WithScheme(scheme).Build(), driver: fake.New(fake.Config{SeparateAPIGroups: separates}),
		clock: testingclock.NewFakeClock(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)), events: record.NewFakeRecorder(100),
		hidden: func(client.ObjectList) bool { return false },
	}
	h.live = interceptor.NewClient(h.client, interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
		if h.hidden(list) {
			return apierrors.NewForbidden(infrav1.SchemeGroupVersion.WithResource("x").GroupResource(), "", errors.New("no"))
		}
		return c.List(ctx, list, options...)
	}})
	class := &v1alpha1.MachineClass{ObjectMeta: metav1.ObjectMeta{Name: "small", Finalizers: []string{v1alpha1.FinalizerMCM, infrav1.ClassFinalizer}}}
	class.ProviderSpec = runtime.RawExtension{Raw: []byte(`{"pool":"p","tags":{"kubernetes.io/cluster/c":"1"}}`)}
	cluster := &core.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "c"}}
	template := &infrav1.MillwrightMachineTemplate{ObjectMeta: metav1.ObjectMeta{Name: "t", Labels: inCluster}}
	template.Spec.Template.Spec = infrav1.MillwrightMachineSpec{Driver: "fake", MachineClassRef: &infrav1.LocalReference{Name: "small"}}
	h.put(class, cluster, template)
	return h
}

var inCluster = map[string]string{core.LabelCluster: "c"}

// manage starts the collector of a manager that serves these APIs.
func (h *harness) manage(served apis) {
	machines := orphans.Machines{Live: h.live, Namespace: namespace}
	machines.Secret = func(context.Context, *v1alpha1.MachineClass) (*corev1.Secret, string, error) {
		return &corev1.Secret{}, "", nil
	}
	infrastructure := MillwrightMachines{Live: h.live, Namespace: namespace, Drivers: registry.Only("fake", h.driver)}
	if served.mcm {
		machines.Cache = h.client
	}
	if served.capi {
		infrastructure.Cache = h.client
	}
	h.collector = orphans.New(orphans.Options{
		APIs: []orphans.API{machines, infrastructure}, Driver: h.driver, Period: period, Limit: orphans.Limit{Count: 100},
		Events: h.events, Clock: h.clock, Log: logr.Discard(),
	})
}

func (h *harness) put(objects ...client.Object) {
	h.Helper()
	for _, object := range objects {
		object.SetNamespace(namespace)
		if err := h.client.Create(h.Context(), object); err != nil {
			h.Fatal(err)
		}
	}
}

// vm creates a VM for an API group, and returns its provider ID.
func (h *harness) vm(group, name string) string {
	h.Helper()
	class := &v1alpha1.MachineClass{}
	if err := h.client.Get(h.Context(), client.ObjectKey{Namespace: namespace, Name: "small"}, class); err != nil {
		h.Fatal(err)
	}
	class.Annotations = map[string]string{driver.AnnotationAPIGroup: group}
	machine := &v1alpha1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	resp, err := h.driver.CreateMachine(h.Context(), &driver.CreateMachineRequest{Machine: machine, MachineClass: class, Secret: &corev1.Secret{}})
	if err != nil {
		h.Fatal(err)
	}
	return resp.ProviderID
}

// machine creates a Machine of MCM's API with its VM.
func (h *harness) machine(name string) *v1alpha1.Machine {
	h.Helper()
	machine := &v1alpha1.Machine{ObjectMeta: metav1.ObjectMeta{Name: name}}
	machine.Spec = v1alpha1.MachineSpec{Class: v1alpha1.ClassSpec{Kind: v1alpha1.MachineClassKind, Name: "small"}, ProviderID: h.vm("", name)}
	machine.Status.CurrentStatus.Phase = v1alpha1.MachineRunning
	h.put(machine)
	return machine
}

// infra creates a MillwrightMachine with its VM.
func (h *harness) infra(name string) *infrav1.MillwrightMachine {
	h.Helper()
	infra := &infrav1.MillwrightMachine{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: inCluster, Annotations: map[string]string{core.AnnotationClonedFrom: "t"}}}
	id := h.vm(driver.APIGroupClusterAPI, name)
	infra.Spec = infrav1.MillwrightMachineSpec{Driver: "fake", MachineClassRef: &infrav1.LocalReference{Name: "small"}, ProviderID: id}
	infra.Status.ProviderID = id
	h.put(infra)
	return infra
}

func (h *harness) remove(object client.Object) {
	h.Helper()
	if err := h.client.Delete(h.Context(), object); err != nil {
		h.Fatal(err)
	}
}

// collect runs the collector three times, and returns the machine names of the remaining VMs.
func (h *harness) collect() []string {
	h.Helper()
	for range 3 {
		h.clock.Step(period)
		if err := h.collector.Collect(h.Context()); err != nil {
			h.Fatal(err)
		}
	}
	var names []string
	for _, vm := range h.driver.VMs() {
		names = append(names, vm.Machine)
	}
	slices.Sort(names)
	return names
}

func (h *harness) wantVMs(when string, want ...string) {
	h.Helper()
	if diff := cmp.Diff(want, h.collect()); diff != "" {
		h.Errorf("%s: VMs (-want +got):\n%s", when, diff)
	}
}

// hasEvent reports whether an event contains the text.
func (h *harness) hasEvent(text string) bool {
	for {
		select {
		case event := <-h.events.Events:
			if strings.Contains(event, text) {
				return true
			}
		default:
			return false
		}
	}
}

// TestOrphans_VMsOfOtherAPIAreKept checks that only VMs without an owner are deleted, whichever APIs the manager serves
// and whether or not the driver keeps their VMs apart.
func TestOrphans_VMsOfOtherAPIAreKept(t *testing.T) {
	for name, served := range map[string]apis{"both": {true, true}, "MCM only": {mcm: true}, "Cluster API only": {capi: true}} {
		for driver, separates := range map[string]bool{"separate API groups": true, "one API group": false} {
			t.Run(name+", "+driver, func(t *testing.T) {
				h := newHarness(t, separates)
				h.manage(served)
				machine, infra := h.machine("mcm"), h.infra("capi")
				h.wantVMs("all have an owner", "capi", "mcm")
				h.remove(machine)
				if separates && !served.mcm {
					h.wantVMs("the Machine of another manager is gone", "capi", "mcm")
				} else {
					h.wantVMs("the Machine is gone", "capi")
				}
				h.remove(infra)
				remaining := h.collect()
				if separates && !served.capi {
					if !slices.Contains(remaining, "capi") {
						t.Errorf("the VM of the other API was deleted; remaining: %v", remaining)
					}
				} else if slices.Contains(remaining, "capi") {
					t.Errorf("the VM of the deleted MillwrightMachine still exists")
				}
			})
		}
	}
}

// TestOrphans_ForbiddenListKeepsVMs checks that nothing is deleted, and an event has the reason, if the other API's objects cannot be
// read and a VM could belong to them.
func TestOrphans_ForbiddenListKeepsVMs(t *testing.T) {
	infras := func(list client.ObjectList) bool { _, ok := list.(*infrav1.MillwrightMachineList); return ok }
	machines := func(list client.ObjectList) bool { _, ok := list.(*v1alpha1.MachineList); return ok }
	for name, tc := range map[string]struct {
		served apis
		hidden func(client.ObjectList) bool
		// separates is set if the driver keeps the VMs of the APIs apart, and unused if only the manager's API uses
		// the class.
		separates, unused bool
		kept              bool
	}{
		"MillwrightMachines":                      {served: apis{mcm: true}, hidden: infras, kept: true},
		"Machines":                                {served: apis{capi: true}, hidden: machines, kept: true},
		"Machines use the class":                  {served: apis{capi: true}, hidden: machines, separates: true, kept: true},
		"Machines may use the class":              {served: apis{capi: true}, hidden: machines, unused: true, kept: true},
		"MillwrightMachines do not use the class": {served: apis{mcm: true}, hidden: infras, separates: true, unused: true},
		"Machines do not use the class":           {served: apis{capi: true}, hidden: machines, separates: true, unused: true},
		"both APIs served":                        {served: apis{true, true}, hidden: func(client.ObjectList) bool { return false }},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, tc.separates)
			h.manage(tc.served)
			h.hidden = tc.hidden
			h.machine("mcm")
			h.infra("capi")
			h.vm(map[bool]string{true: driver.APIGroupClusterAPI}[tc.served.capi], "lost")
			if tc.unused {
				class := &v1alpha1.MachineClass{}
				if err := h.client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "small"}, class); err != nil {
					t.Fatal(err)
				}
				class.Finalizers = nil
				if err := h.client.Update(t.Context(), class); err != nil {
					t.Fatal(err)
				}
			}
			want := []string{"capi", "lost", "mcm"}
			if !tc.kept {
				want = []string{"capi", "mcm"}
			}
			h.wantVMs("hidden", want...)
			if reported := h.hasEvent("reading them is forbidden"); reported != tc.kept {
				t.Errorf("reported = %t, want %t", reported, tc.kept)
			}
		})
	}
}

// TestOrphans_PausedClusterKeepsVMs checks that no VMs of a paused cluster are deleted, for example during a move (G4).
func TestOrphans_PausedClusterKeepsVMs(t *testing.T) {
	h := newHarness(t, true)
	h.manage(apis{capi: true})
	h.vm(driver.APIGroupClusterAPI, "lost")
	cluster := &core.Cluster{}
	if err := h.client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "c"}, cluster); err != nil {
		t.Fatal(err)
	}
	cluster.Spec.Paused = true
	if err := h.client.Update(t.Context(), cluster); err != nil {
		t.Fatal(err)
	}
	h.wantVMs("paused", "lost")
	h.remove(cluster) // as clusterctl does after a move
	h.wantVMs("moved", "lost")
	h.put(&core.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "c"}})
	h.wantVMs("created again")
}

// TestOrphans_AdoptableVMsAreKept checks that a VM stays that an object with the same name may adopt, because it is being created or was
// moved here.
func TestOrphans_AdoptableVMsAreKept(t *testing.T) {
	h := newHarness(t, true)
	h.manage(apis{capi: true})
	for name, change := range map[string]func(*infrav1.MillwrightMachine){
		"no-id": func(m *infrav1.MillwrightMachine) { m.Spec.ProviderID, m.Status.ProviderID = "", "" },
		"moved": func(m *infrav1.MillwrightMachine) {
			m.Spec.ProviderID, m.Status.ProviderID = "fake:///ns/moved/9-0", ""
		},
		"edited": func(m *infrav1.MillwrightMachine) { m.Spec.ProviderID = "fake:///ns/edited/9-0" },
	} {
		infra := h.infra(name)
		change(infra)
		if err := h.client.Update(t.Context(), infra); err != nil {
			t.Fatal(err)
		}
	}
	h.wantVMs("adoptable", "edited", "moved", "no-id")
}

// TestClasses_AreListedOnce checks that the classes of all machines and templates are listed once per failure domain.
func TestClasses_AreListedOnce(t *testing.T) {
	h := newHarness(t, true)
	own := infrav1.MillwrightMachineSpec{Driver: "fake", ProviderSpec: &runtime.RawExtension{Raw: []byte(`{"pool":"own"}`)}}
	own.FailureDomains = []infrav1.Placement{{Name: "a"}, {Name: "b", ProviderSpec: &runtime.RawExtension{Raw: []byte(`{"pool":"b"}`)}}}
	template := &infrav1.MillwrightMachineTemplate{ObjectMeta: metav1.ObjectMeta{Name: "own", Labels: inCluster}}
	template.Spec.Template.Spec = own
	other := &infrav1.MillwrightMachineTemplate{ObjectMeta: metav1.ObjectMeta{Name: "other"}}
	other.Spec.Template.Spec = infrav1.MillwrightMachineSpec{Driver: "other", ProviderSpec: own.ProviderSpec}
	broken := &infrav1.MillwrightMachineTemplate{ObjectMeta: metav1.ObjectMeta{Name: "broken"}}
	broken.Spec.Template.Spec = infrav1.MillwrightMachineSpec{Driver: "fake", ProviderSpec: own.ProviderSpec, CredentialsSecretRef: &infrav1.LocalReference{Name: "gone"}}
	h.put(template, other, broken)
	for _, name := range []string{"m1", "m2"} {
		machine := &infrav1.MillwrightMachine{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: inCluster, Annotations: map[string]string{core.AnnotationClonedFrom: "own"}}, Spec: own}
		machine.Spec.FailureDomain = "b"
		h.put(machine)
	}
	api := MillwrightMachines{Cache: h.client, Live: h.client, Namespace: namespace, Drivers: registry.Only("fake", h.driver)}
	classes, err := api.Classes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, class := range classes {
		if class.Skip != "" {
			got = append(got, class.Object.GetName()+": skipped")
			continue
		}
		got = append(got, class.Object.GetName()+": "+string(class.Class.ProviderSpec.Raw))
	}
	slices.Sort(got)
	want := []string{
		"broken: skipped", `own: {"pool":"b"}`, `own: {"pool":"own"}`, `own: {"pool":"own"}`, `small: {"pool":"p","tags":{"kubernetes.io/cluster/c":"1"}}`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("classes (-want +got):\n%s", diff)
	}
	owners, err := api.Owners(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	for _, owner := range owners {
		if !slices.ContainsFunc(classes, func(class orphans.Class) bool { return class.Key == owner.Class }) {
			t.Errorf("the class of machine %s is not listed", owner.Name)
		}
	}
}

// TestClasses_InFailureDomainOfDriver checks that VMs are also listed in failure domains that only the driver knows.
func TestClasses_InFailureDomainOfDriver(t *testing.T) {
	h := newHarness(t, true)
	machine := &infrav1.MillwrightMachine{ObjectMeta: metav1.ObjectMeta{Name: "m", Labels: inCluster}}
	machine.Spec = infrav1.MillwrightMachineSpec{
		Driver: "fake", ProviderSpec: &runtime.RawExtension{Raw: []byte(`{"pool":"own"}`)}, FailureDomain: "a",
	}
	h.put(machine)
	api := MillwrightMachines{Cache: h.client, Live: h.client, Namespace: namespace, Drivers: registry.Only("fake", h.driver)}
	for _, tc := range []struct{ skipped, spec string }{
		{skipped: `failure domain "a" is not in spec.failureDomains`},
		{spec: `{"pool":"own","zone":"a"}`},
	} {
		classes, err := api.Classes(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, class := range classes {
			if class.Object.GetName() != "m" {
				continue
			}
			if class.Skip != tc.skipped {
				t.Errorf("skipped because of %q, want %q", class.Skip, tc.skipped)
			}
			if tc.spec != "" && string(class.Class.ProviderSpec.Raw) != tc.spec {
				t.Errorf("specification %s, want %s", class.Class.ProviderSpec.Raw, tc.spec)
			}
		}
		if len(classes) != 2 {
			t.Errorf("%d classes", len(classes))
		}
		api.Drivers = registry.Only("fake", sim.New(sim.Config{}))
	}
}
