package legacyclass

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/record"
	testingclock "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/millwright-dev/millwright/api/machine/legacy"
	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/registry"
	"github.com/millwright-dev/millwright/driver/sim"
	"github.com/millwright-dev/millwright/driver/status"
	"github.com/millwright-dev/millwright/internal/pool/revision"
	"github.com/millwright-dev/millwright/internal/reconcile/fieldindex"
	"github.com/millwright-dev/millwright/test/support/fakeclient"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

// key is the namespace and name of the class.
var key = client.ObjectKey{Namespace: fixture.Machine().Namespace, Name: "big"}

type indexer struct{ *fake.ClientBuilder }

func (i indexer) IndexField(_ context.Context, object client.Object, field string, values client.IndexerFunc) error {
	i.WithIndex(object, field, values)
	return nil
}

// broken is a driver that returns an error.
type broken struct {
	driver.Driver
	spec  string
	err   error
	calls int
}

func (b *broken) GenerateMachineClassForMigration(_ context.Context, req *driver.GenerateMachineClassForMigrationRequest) (*driver.GenerateMachineClassForMigrationResponse, error) {
	b.calls++
	req.MachineClass.ProviderSpec.Raw = []byte(b.spec)
	return &driver.GenerateMachineClassForMigrationResponse{}, b.err
}

// world is a control cluster and a controller.
type world struct {
	*testing.T
	client.Client
	clock      *testingclock.FakeClock
	events     *record.FakeRecorder
	controller *Controller
	// writes counts attempted writes. The write with the number last and later ones are not carried out; if last
	// is negative, all are.
	writes, last int
}

var errKilled = errors.New("the process was killed")

// kinds returns the scheme of all worlds.
var kinds = sync.OnceValue(func() *runtime.Scheme {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, v1alpha1.AddToScheme, legacy.AddToScheme} {
		if err := add(scheme); err != nil {
			panic(err) // duplicate kind
		}
	}
	return scheme
})

func newWorld(t *testing.T, d driver.Driver, objects ...client.Object) *world {
	t.Helper()
	w := &world{T: t, clock: testingclock.NewFakeClock(time.Now()), events: record.NewFakeRecorder(100), last: -1}
	builder := indexer{fakeclient.NewBuilder(kinds()).WithObjects(objects...).WithInterceptorFuncs(interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, object client.Object, options ...client.CreateOption) error {
			if w.killed() {
				return errKilled
			}
			return c.Create(ctx, object, options...)
		},
		Patch: func(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, options ...client.PatchOption) error {
			if w.killed() {
				return errKilled
			}
			return c.Patch(ctx, object, patch, options...)
		},
	})}
	if err := errors.Join(fieldindex.Add(t.Context(), builder), addIndexes(t.Context(), builder)); err != nil {
		t.Fatal(err)
	}
	w.Client = builder.Build()
	w.restart(d)
	return w
}

func (w *world) killed() bool {
	w.writes++
	return w.last >= 0 && w.writes > w.last
}

// restart starts a new controller, like a new process.
func (w *world) restart(d driver.Driver) {
	w.begin(registry.Only("sim", d))
}

// begin starts a new controller with these drivers.
func (w *world) begin(drivers *registry.Registry) {
	w.controller = New(Options{Client: w.Client, Cache: w.Client, Drivers: drivers, Kinds: legacy.Kinds(), Events: w.events, Clock: w.clock})
}

func (w *world) pass() (ctrl.Result, error) {
	return w.controller.Reconcile(w.Context(), legacy.AWS, key)
}

func (w *world) mustPass() ctrl.Result {
	w.Helper()
	result, err := w.pass()
	if err != nil {
		w.Fatal(err)
	}
	return result
}

// dump returns all objects as JSON, without fields that the API server maintains.
func (w *world) dump() string {
	w.Helper()
	var all []string
	for _, list := range []client.ObjectList{
		&v1alpha1.MachineDeploymentList{}, &v1alpha1.MachineSetList{}, &v1alpha1.MachineList{}, &v1alpha1.MachineClassList{},
		&corev1.SecretList{}, &legacy.AWSMachineClassList{},
	} {
		if err := w.List(w.Context(), list); err != nil {
			w.Fatal(err)
		}
		err := meta.EachListItem(list, func(item runtime.Object) error {
			item.(client.Object).SetResourceVersion("")
			raw, err := json.MarshalIndent(item, "", " ")
			all = append(all, string(raw))
			return err
		})
		if err != nil {
			w.Fatal(err)
		}
	}
	return strings.Join(all, "\n")
}

func (w *world) takeEvents() []string {
	var all []string
	for {
		select {
		case event := <-w.events.Events:
			all = append(all, event)
		default:
			return all
		}
	}
}

func ref() v1alpha1.ClassSpec { return v1alpha1.ClassSpec{Kind: legacy.AWS, Name: key.Name} }

func named(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: key.Namespace, Name: name, Finalizers: []string{v1alpha1.FinalizerMCM}}
}

func oldClass() *legacy.AWSMachineClass {
	class := &legacy.AWSMachineClass{ObjectMeta: named(key.Name)}
	class.Finalizers = append(class.Finalizers, v1alpha1.FinalizerLegacy, "example.com/theirs")
	class.Spec.AMI, class.Spec.Tags = "ami-1", map[string]string{"kubernetes.io/cluster/c": "1"}
	class.Spec.SecretRef = &corev1.SecretReference{Namespace: key.Namespace, Name: "user-data"}
	class.Spec.CredentialsSecretRef = &corev1.SecretReference{Namespace: key.Namespace, Name: "shared"}
	return class
}

// fleet returns a deployment with its set and Machines, and the objects that their class needs.
func fleet() []client.Object {
	deployment := &v1alpha1.MachineDeployment{ObjectMeta: named("pool")}
	deployment.Spec.Template.Labels = map[string]string{"name": "pool"}
	deployment.Spec.Template.Spec.Class = ref()
	set := &v1alpha1.MachineSet{ObjectMeta: named("pool-1")}
	set.Spec.Template = *deployment.Spec.Template.DeepCopy()
	set.Spec.MachineClass = ref()
	objects := []client.Object{oldClass(), deployment, set}
	for _, name := range []string{"a", "b"} {
		machine := &v1alpha1.Machine{ObjectMeta: named(name)}
		machine.Finalizers = []string{v1alpha1.FinalizerLegacy}
		machine.Spec.Class = ref()
		objects = append(objects, machine)
	}
	stranger := &v1alpha1.Machine{ObjectMeta: named("stranger")}
	stranger.Spec.Class = v1alpha1.ClassSpec{Kind: legacy.AWS, Name: "small"}
	other := &legacy.AWSMachineClass{ObjectMeta: named("small")}
	other.Spec.SecretRef = &corev1.SecretReference{Name: "shared"}
	return append(objects, stranger, other, &corev1.Secret{ObjectMeta: named("user-data")}, &corev1.Secret{ObjectMeta: named("shared")})
}

func get[T client.Object](w *world, name string, object T) T {
	w.Helper()
	if err := w.Get(w.Context(), client.ObjectKey{Namespace: key.Namespace, Name: name}, object); err != nil {
		w.Fatal(err)
	}
	return object
}

func TestMigration_SwitchesReferences(t *testing.T) {
	t.Parallel()
	w := newWorld(t, sim.New(sim.Config{}), fleet()...)
	before := get(w, "pool", &v1alpha1.MachineDeployment{})
	w.mustPass()

	class := get(w, key.Name, &v1alpha1.MachineClass{})
	if class.Provider != "sim" || class.SecretRef.Name != "user-data" || class.CredentialsSecretRef.Name != "shared" ||
		class.Annotations[legacy.AnnotationMigratedFrom] != legacy.AWS || !strings.Contains(string(class.ProviderSpec.Raw), "ami-1") {
		t.Errorf("class %+v", class)
	}
	deployment, set := get(w, "pool", &v1alpha1.MachineDeployment{}), get(w, "pool-1", &v1alpha1.MachineSet{})
	if !revision.Same(&before.Spec.Template, &deployment.Spec.Template) || revision.Hash(&before.Spec.Template, 0) != revision.Hash(&deployment.Spec.Template, 0) {
		t.Error("the deployment would replace its Machines")
	}
	ofKind := func(kind string) v1alpha1.ClassSpec { return v1alpha1.ClassSpec{Kind: kind, Name: key.Name} }
	want := map[string]v1alpha1.ClassSpec{
		"pool": ofKind(v1alpha1.MachineClassKind), "pool-1": ofKind(v1alpha1.MachineClassKind), "pool-1, older field": ofKind(v1alpha1.MachineClassKind),
		"a": ofKind(v1alpha1.MachineClassKind), "b": ofKind(v1alpha1.MachineClassKind), "stranger": {Kind: legacy.AWS, Name: "small"},
	}
	got := map[string]v1alpha1.ClassSpec{
		"pool": deployment.Spec.Template.Spec.Class, "pool-1": set.Spec.Template.Spec.Class, "pool-1, older field": set.Spec.MachineClass,
	}
	for _, name := range []string{"a", "b", "stranger"} {
		got[name] = get(w, name, &v1alpha1.Machine{}).Spec.Class
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("references (-want +got):\n%s", diff)
	}
}

// TestMigration_MovesFinalizers checks that the finalizers of legacy objects are replaced, and that other finalizers remain.
func TestMigration_MovesFinalizers(t *testing.T) {
	t.Parallel()
	w := newWorld(t, sim.New(sim.Config{}), fleet()...)
	w.mustPass()
	old := get(w, key.Name, &legacy.AWSMachineClass{})
	if _, marked := old.Annotations[legacy.AnnotationMigrated]; !marked {
		t.Errorf("annotations of the legacy class: %v", old.Annotations)
	}
	for name, tc := range map[string]struct {
		object client.Object
		want   string
	}{
		"the legacy class":           {old, "example.com/theirs"},
		"the class":                  {get(w, key.Name, &v1alpha1.MachineClass{}), v1alpha1.FinalizerMCM},
		"a Machine":                  {get(w, "a", &v1alpha1.Machine{}), v1alpha1.FinalizerMCM},
		"the Secret":                 {get(w, "user-data", &corev1.Secret{}), v1alpha1.FinalizerSecret},
		"a Secret of another, older": {get(w, "shared", &corev1.Secret{}), v1alpha1.FinalizerMCM},
	} {
		if got := tc.object.GetFinalizers(); !cmp.Equal(got, []string{tc.want}) {
			t.Errorf("%s: finalizers %v, want %s", name, got, tc.want)
		}
	}
}

// TestMigration_HappensOnce checks that a migration causes one event, and that later passes write nothing.
func TestMigration_HappensOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, sim.New(sim.Config{}), fleet()...)
	w.mustPass()
	writes := w.writes
	w.mustPass()
	if w.writes != writes {
		t.Error("the second pass wrote to the API server")
	}
	if events := w.takeEvents(); len(events) != 1 || !strings.HasPrefix(events[0], "Normal Migrated") {
		t.Errorf("events %q, want one", events)
	}
}

// TestMigration_SurvivesTerminationAtAnyWrite checks that the result is the same if the process is killed at any write.
func TestMigration_SurvivesTerminationAtAnyWrite(t *testing.T) {
	t.Parallel()
	whole := newWorld(t, sim.New(sim.Config{}), fleet()...)
	whole.mustPass()
	want := whole.dump()
	for last := range whole.writes {
		w := newWorld(t, sim.New(sim.Config{}), fleet()...)
		w.last = last
		if _, err := w.pass(); !errors.Is(err, errKilled) {
			t.Fatalf("write %d: %v", last, err)
		}
		w.last = -1
		w.restart(sim.New(sim.Config{}))
		w.mustPass()
		if diff := cmp.Diff(want, w.dump()); diff != "" {
			t.Errorf("killed at write %d (-uninterrupted +killed):\n%s", last, diff)
		}
	}
}

// TestMigration_SwitchesLaterReferences checks references that a set or a user creates after the migration. The MachineClass
// takes precedence by then.
func TestMigration_SwitchesLaterReferences(t *testing.T) {
	t.Parallel()
	w := newWorld(t, sim.New(sim.Config{}), fleet()...)
	w.mustPass()
	class := get(w, key.Name, &v1alpha1.MachineClass{})
	class.ProviderSpec.Raw = []byte(`{"joinDelay":"1s"}`)
	if err := w.Update(t.Context(), class); err != nil {
		t.Fatal(err)
	}
	late := &v1alpha1.Machine{ObjectMeta: named("late")}
	late.Spec.Class = ref()
	if err := w.Create(t.Context(), late); err != nil {
		t.Fatal(err)
	}
	w.mustPass()
	if machine := get(w, "late", &v1alpha1.Machine{}); machine.Spec.Class.Kind != v1alpha1.MachineClassKind {
		t.Errorf("class reference %v", machine.Spec.Class)
	}
	if class := get(w, key.Name, &v1alpha1.MachineClass{}); string(class.ProviderSpec.Raw) != `{"joinDelay":"1s"}` {
		t.Errorf("provider specification %s", class.ProviderSpec.Raw)
	}
}

// TestMigration_RemovedMarkChangesNothing checks that a user who removes the mark from the legacy class does not change a MachineClass
// that is in use.
func TestMigration_RemovedMarkChangesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, sim.New(sim.Config{}), fleet()...)
	w.mustPass()
	before := get(w, key.Name, &v1alpha1.MachineClass{})
	old := get(w, key.Name, &legacy.AWSMachineClass{})
	delete(old.Annotations, legacy.AnnotationMigrated)
	old.Spec.AMI, old.Generation = "ami-evil", old.Generation+1
	if err := w.Update(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	late := &v1alpha1.Machine{ObjectMeta: named("late")}
	late.Spec.Class = ref()
	if err := w.Create(t.Context(), late); err != nil {
		t.Fatal(err)
	}
	w.mustPass()
	if diff := cmp.Diff(before, get(w, key.Name, &v1alpha1.MachineClass{})); diff != "" {
		t.Errorf("the class changed (-before +after):\n%s", diff)
	}
	if machine := get(w, "late", &v1alpha1.Machine{}); machine.Spec.Class.Kind != v1alpha1.MachineClassKind {
		t.Errorf("class reference %v", machine.Spec.Class)
	}
}

// TestMigration_FollowsEdits checks that the MachineClass follows edits of the legacy object until it is in use.
func TestMigration_FollowsEdits(t *testing.T) {
	t.Parallel()
	w := newWorld(t, sim.New(sim.Config{}), fleet()...)
	w.last = 1 // creates the class
	if _, err := w.pass(); !errors.Is(err, errKilled) {
		t.Fatal(err)
	}
	old := get(w, key.Name, &legacy.AWSMachineClass{})
	old.Spec.AMI = "ami-2"
	if err := w.Update(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	w.last = -1
	w.mustPass()
	if class := get(w, key.Name, &v1alpha1.MachineClass{}); !strings.Contains(string(class.ProviderSpec.Raw), "ami-2") {
		t.Errorf("provider specification %s", class.ProviderSpec.Raw)
	}
}

// TestMigration_SkipsUnusedClass checks that an unused object keeps its finalizers unless it is being deleted.
func TestMigration_SkipsUnusedClass(t *testing.T) {
	t.Parallel()
	w := newWorld(t, sim.New(sim.Config{}), oldClass())
	before := w.dump()
	w.mustPass()
	if diff := cmp.Diff(before, w.dump()); diff != "" {
		t.Errorf("an unused class was changed:\n%s", diff)
	}
	if err := w.Delete(t.Context(), oldClass()); err != nil {
		t.Fatal(err)
	}
	w.mustPass()
	if old := get(w, key.Name, &legacy.AWSMachineClass{}); !cmp.Equal(old.Finalizers, []string{"example.com/theirs"}) {
		t.Errorf("finalizers: %v", old.Finalizers)
	}
}

// TestMigration_RefusalIsReportedOnce checks that nothing changes, and that the reason is reported once.
func TestMigration_RefusalIsReportedOnce(t *testing.T) {
	t.Parallel()
	set := func(value any, field ...string) func(*unstructured.Unstructured) {
		return func(object *unstructured.Unstructured) {
			if err := unstructured.SetNestedField(object.Object, value, field...); err != nil {
				panic(err)
			}
		}
	}
	taken := &v1alpha1.MachineClass{ObjectMeta: named(key.Name), Provider: "sim", ProviderSpec: runtime.RawExtension{Raw: []byte(`{}`)}}
	for name, tc := range map[string]struct {
		change func(*unstructured.Unstructured)
		driver driver.Driver
		also   client.Object
		want   string
	}{
		"unknown field":        {change: set("x", "spec", "amy"), want: `"spec.amy"`},
		"unknown nested field": {change: set("x", "spec", "iam", "amy"), want: `"spec.iam.amy"`},
		"unknown at the top":   {change: set("x", "specs"), want: `"specs"`},
		"wrong type":           {change: set(int64(1), "spec", "ami"), want: "spec.ami"},
		"unimplemented":        {driver: &broken{err: status.Error(codes.Unimplemented, "not here")}, want: "not here"},
		"no migrator":          {driver: struct{ driver.Driver }{}, want: "does not migrate classes"},
		"internal":             {driver: &broken{err: status.Error(codes.Internal, "oh")}, want: "oh"},
		"nothing filled":       {driver: &broken{}, want: "no providerSpec"},
		"no object filled":     {driver: &broken{spec: `["a list"]`}, want: "not a JSON object"},
		"null filled":          {driver: &broken{spec: `null`}, want: "not a JSON object"},
		"name taken":           {also: taken, want: "there is already a different MachineClass"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			raw, err := runtime.DefaultUnstructuredConverter.ToUnstructured(oldClass())
			if err != nil {
				t.Fatal(err)
			}
			object := &unstructured.Unstructured{Object: raw}
			object.SetGroupVersionKind(legacy.SchemeGroupVersion.WithKind(legacy.AWS))
			if tc.change != nil {
				tc.change(object)
			}
			d := tc.driver
			if d == nil {
				d = sim.New(sim.Config{})
			}
			objects := fleet()[1:]
			if tc.also != nil {
				objects = append(objects, tc.also.DeepCopyObject().(client.Object))
			}
			w := newWorld(t, d, objects...)
			opts := w.controller.Options
			opts.Cache = shows{w.Client, object}
			w.controller = New(opts)
			before := w.dump()
			for range 3 {
				w.mustPass()
			}
			if w.writes > 0 || cmp.Diff(before, w.dump()) != "" {
				t.Errorf("%d writes; changes: %s", w.writes, cmp.Diff(before, w.dump()))
			}
			if events := w.takeEvents(); len(events) != 1 || !strings.Contains(events[0], tc.want) || !strings.HasPrefix(events[0], "Warning "+reasonFailed) {
				t.Errorf("events %q, want one with %s", events, tc.want)
			}
			migration, err := w.controller.Migration(t.Context(), key.Namespace, ref())
			if err != nil || !strings.Contains(migration.Problem, tc.want) {
				t.Errorf("Migration = %+v, %v", migration, err)
			}
		})
	}
}

// shows is a cache with one unstructured object.
type shows struct {
	client.Client
	object *unstructured.Unstructured
}

func (s shows) Get(ctx context.Context, key client.ObjectKey, into client.Object, options ...client.GetOption) error {
	if into, ok := into.(*unstructured.Unstructured); ok {
		into.Object = s.object.DeepCopy().Object
		return nil
	}
	return s.Client.Get(ctx, key, into, options...)
}

// TestMigration_BacksOff checks that an Internal error is retried after 5 s, then after twice that, and that an Unimplemented
// error is retried only after the object was edited.
func TestMigration_BacksOff(t *testing.T) {
	t.Parallel()
	d := &broken{err: status.Error(codes.Internal, "oh")}
	w := newWorld(t, d, fleet()...)
	for i, want := range []time.Duration{5 * time.Second, 10 * time.Second, 20 * time.Second} {
		if result := w.mustPass(); result.RequeueAfter != want {
			t.Errorf("after %d failures: %v, want %v", i+1, result.RequeueAfter, want)
		}
		w.clock.Step(want - time.Second)
		if result := w.mustPass(); d.calls != i+1 || result.RequeueAfter != time.Second {
			t.Errorf("%d calls, next pass in %v, before the retry is due", d.calls, result.RequeueAfter)
		}
		w.clock.Step(time.Second)
	}
	d.err = status.Error(codes.Unimplemented, "not here")
	w.mustPass()
	calls := d.calls
	w.clock.Step(24 * time.Hour)
	if result := w.mustPass(); d.calls != calls || result.RequeueAfter != 0 {
		t.Errorf("%d more calls, next pass in %v", d.calls-calls, result.RequeueAfter)
	}
	if migration, err := w.controller.Migration(t.Context(), key.Namespace, ref()); err != nil || migration.Pending {
		t.Errorf("Migration = %+v, %v", migration, err)
	}
	edited := get(w, key.Name, &legacy.AWSMachineClass{})
	edited.Generation++
	if err := w.Update(t.Context(), edited); err != nil {
		t.Fatal(err)
	}
	w.restart(sim.New(sim.Config{}))
	w.mustPass()
	get(w, key.Name, &v1alpha1.MachineClass{})
}

// TestMigration_ProgressForMachines checks what the machine controller learns about a migration.
func TestMigration_ProgressForMachines(t *testing.T) {
	t.Parallel()
	w := newWorld(t, sim.New(sim.Config{}), fleet()...)
	w.controller.Kinds = []string{legacy.AWS}
	for name, tc := range map[string]struct {
		ref  v1alpha1.ClassSpec
		want Migration
	}{
		"to come":    {ref(), Migration{Pending: true}},
		"missing":    {v1alpha1.ClassSpec{Kind: legacy.AWS, Name: "none"}, Migration{Problem: `AWSMachineClass "none" not found in namespace "` + key.Namespace + `"`}},
		"not served": {v1alpha1.ClassSpec{Kind: legacy.GCP, Name: "none"}, Migration{}},
	} {
		if got, err := w.controller.Migration(t.Context(), key.Namespace, tc.ref); err != nil || got != tc.want {
			t.Errorf("%s: %+v, %v; want %+v", name, got, err, tc.want)
		}
	}
}
