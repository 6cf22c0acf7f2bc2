package capi

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/client-go/tools/record"
	testingclock "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/capi/core"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
	"github.com/millwright-dev/millwright/test/env"
)

func TestMain(m *testing.M) { env.Main(m) }

// The names of what every world begins with.
const (
	clusterName   = "c1"
	machineName   = "m1"
	bootstrapName = "m1-bootstrap"
	joinTimeout   = 20 * time.Minute
)

// bootstrapData looks like what other faces would fill in.
const bootstrapData = "#cloud-config\njoin: <<BOOTSTRAP_TOKEN>> as <<MACHINE_NAME>>\n\x00\xff"

// world is a controller of MillwrightMachines with all that it deals with. Nothing in it
// runs by itself: passes and driver calls are taken in turn by settle.
type world struct {
	*testing.T
	namespace  string
	clock      *testingclock.FakeClock
	client     client.WithWatch
	driver     *scripted
	engine     *instance.Engine
	controller *Controller
	events     *record.FakeRecorder
	// tasks are driver calls that wait to be made.
	tasks []func(context.Context)
	// writes are the requests that change something, as "patch" or "patch status".
	writes []string
	// refuse, if set, decides on writes before they are made.
	refuse func(what string) error
}

// scheme is that of all worlds without a server.
var scheme = newScheme(core.V1Beta2)

// newScheme knows Cluster API's kinds under a version.
func newScheme(version schema.GroupVersion) *runtime.Scheme {
	scheme := env.NewScheme()
	core.AddToScheme(scheme, version)
	if err := infrav1.AddToScheme(scheme); err != nil {
		panic(err) // two kinds of one name
	}
	return scheme
}

// newWorld makes a world where a Machine waits for its VM, changed as the test wants it.
func newWorld(t *testing.T, changes ...func(*given)) *world {
	t.Helper()
	w := &world{T: t, namespace: "ns", clock: testingclock.NewFakeClock(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))}
	g := newGiven(w.namespace, w.clock.Now())
	for _, change := range changes {
		change(g)
	}
	// Nothing is applied, so no field managers are needed, which are expensive to make.
	w.client = fake.NewClientBuilder().WithScheme(scheme).WithTypeConverters(managedfields.NewDeducedTypeConverter()).WithObjects(g.objects()...).
		WithStatusSubresource(&infrav1.MillwrightMachine{}).Build()
	w.driver = newScripted()
	w.restart()
	return w
}

// given is what a world begins with. What is nil is not there.
type given struct {
	infra     *infrav1.MillwrightMachine
	machine   *core.Machine
	cluster   *core.Cluster
	bootstrap *corev1.Secret
	more      []client.Object
}

func newGiven(namespace string, now time.Time) *given {
	born := metav1.ObjectMeta{Namespace: namespace, CreationTimestamp: metav1.NewTime(now), Labels: map[string]string{core.LabelCluster: clusterName}}
	g := &given{
		infra:     &infrav1.MillwrightMachine{ObjectMeta: *born.DeepCopy()},
		machine:   &core.Machine{ObjectMeta: *born.DeepCopy()},
		cluster:   &core.Cluster{ObjectMeta: *born.DeepCopy()},
		bootstrap: &corev1.Secret{ObjectMeta: *born.DeepCopy(), Data: map[string][]byte{core.BootstrapData: []byte(bootstrapData)}},
	}
	g.infra.Name, g.infra.UID = machineName, "infra-uid"
	g.infra.OwnerReferences = []metav1.OwnerReference{{APIVersion: core.V1Beta2.String(), Kind: core.MachineKind, Name: machineName, UID: "machine-uid"}}
	g.infra.Spec = infrav1.MillwrightMachineSpec{Driver: "test", ProviderSpec: raw(`{"size":"small"}`)}
	g.machine.Name, g.machine.UID = machineName, "machine-uid"
	g.machine.Spec.ClusterName = clusterName
	g.machine.Spec.Bootstrap.DataSecretName = new(bootstrapName)
	g.machine.Spec.InfrastructureRef = core.Reference{APIGroup: infrav1.GroupName, Kind: infrav1.MillwrightMachineKind, Name: machineName}
	g.cluster.Name = clusterName
	g.cluster.Status.Initialization.InfrastructureProvisioned = true
	g.bootstrap.Name = bootstrapName
	return g
}

func raw(text string) *runtime.RawExtension { return &runtime.RawExtension{Raw: []byte(text)} }

func (g *given) objects() []client.Object {
	var all []client.Object
	if g.infra != nil {
		all = append(all, g.infra)
	}
	if g.machine != nil {
		all = append(all, g.machine)
	}
	if g.cluster != nil {
		all = append(all, g.cluster)
	}
	if g.bootstrap != nil {
		all = append(all, g.bootstrap)
	}
	return append(all, g.more...)
}

// restart ends the manager and starts another one.
func (w *world) restart() {
	w.tasks = nil
	w.events = record.NewFakeRecorder(100)
	w.engine = instance.New(w.driver, instance.Options{
		Run: func(task func(context.Context)) bool {
			w.tasks = append(w.tasks, task)
			return true
		},
		Wake:  func(instance.Key) {},
		Clock: w.clock,
	})
	seen := w.recorded()
	w.controller = New(Options{
		Client: seen, Live: seen, Engine: w.engine, Events: w.events, Clock: w.clock, Driver: "test", JoinTimeout: joinTimeout,
	})
}

// recorded is the client with every write noted, and with the indexes of a cache.
func (w *world) recorded() client.Client {
	note := func(what string) error {
		if w.refuse != nil {
			if err := w.refuse(what); err != nil {
				return err
			}
		}
		w.writes = append(w.writes, what)
		return nil
	}
	return interceptor.NewClient(w.client, interceptor.Funcs{
		List: listByIndex,
		Create: func(context.Context, client.WithWatch, client.Object, ...client.CreateOption) error {
			panic("nothing is created")
		},
		Update: func(context.Context, client.WithWatch, client.Object, ...client.UpdateOption) error {
			panic("the controller writes with patches")
		},
		Delete: func(context.Context, client.WithWatch, client.Object, ...client.DeleteOption) error {
			panic("nothing is deleted")
		},
		Patch: func(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, options ...client.PatchOption) error {
			if err := note("patch"); err != nil {
				return err
			}
			return c.Patch(ctx, object, patch, options...)
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, object client.Object, patch client.Patch, options ...client.SubResourcePatchOption) error {
			if err := note("patch " + sub); err != nil {
				return err
			}
			return c.SubResource(sub).Patch(ctx, object, patch, options...)
		},
	})
}

// listByIndex answers for the indexes that a cache has and an API server has not.
func listByIndex(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
	asked := (&client.ListOptions{}).ApplyOptions(options)
	machines, ok := list.(*infrav1.MillwrightMachineList)
	if !ok || asked.FieldSelector == nil {
		return c.List(ctx, list, options...)
	}
	if err := c.List(ctx, machines, client.InNamespace(asked.Namespace)); err != nil {
		return err
	}
	for _, wanted := range asked.FieldSelector.Requirements() {
		machines.Items = slices.DeleteFunc(machines.Items, func(m infrav1.MillwrightMachine) bool {
			return !slices.Contains(indexes()[wanted.Field](&m), wanted.Value)
		})
	}
	return nil
}

func (w *world) key() types.NamespacedName {
	return types.NamespacedName{Namespace: w.namespace, Name: machineName}
}

// pass takes one pass.
func (w *world) pass() ctrl.Result {
	w.Helper()
	result, err := w.controller.Reconcile(w.Context(), ctrl.Request{NamespacedName: w.key()})
	if err != nil {
		w.Fatalf("a pass failed: %v", err)
	}
	return result
}

// call makes the driver calls that wait, and reports whether there were any.
func (w *world) call() bool {
	waiting := w.tasks
	w.tasks = nil
	for _, task := range waiting {
		task(w.Context())
	}
	return len(waiting) > 0
}

// settle takes passes and makes calls until nothing more happens but by waiting for more
// than a second, as events bring passes in life. It answers what the last pass did.
func (w *world) settle() ctrl.Result {
	w.Helper()
	for range 20 {
		before := len(w.writes)
		result := w.pass()
		if w.call() || len(w.writes) != before {
			continue
		}
		if result.RequeueAfter <= 0 || result.RequeueAfter > time.Second {
			return result
		}
		w.clock.Step(result.RequeueAfter)
	}
	w.Fatalf("it never comes to rest; writes: %v", w.writes)
	return ctrl.Result{}
}

// settleAfter lets time pass before.
func (w *world) settleAfter(d time.Duration) ctrl.Result {
	w.Helper()
	w.clock.Step(d)
	return w.settle()
}

// infra reads the MillwrightMachine.
func (w *world) infra() *infrav1.MillwrightMachine {
	w.Helper()
	infra := &infrav1.MillwrightMachine{}
	if err := w.client.Get(w.Context(), w.key(), infra); err != nil {
		w.Fatal(err)
	}
	return infra
}

// gone reports whether it no longer exists.
func (w *world) gone() bool {
	w.Helper()
	err := w.client.Get(w.Context(), w.key(), &infrav1.MillwrightMachine{})
	if client.IgnoreNotFound(err) != nil {
		w.Fatal(err)
	}
	return err != nil
}

// change edits an object as others would.
func change[O client.Object](w *world, object O, edit func(O)) {
	w.Helper()
	if err := w.client.Get(w.Context(), client.ObjectKeyFromObject(object), object); err != nil {
		w.Fatal(err)
	}
	edit(object)
	if err := w.client.Update(w.Context(), object); err != nil {
		w.Fatal(err)
	}
}

func (w *world) changeInfra(edit func(*infrav1.MillwrightMachine)) { change(w, w.infra(), edit) }

func (w *world) changeMachine(edit func(*core.Machine)) {
	change(w, &core.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: machineName}}, edit)
}

func (w *world) changeCluster(edit func(*core.Cluster)) {
	change(w, &core.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: clusterName}}, edit)
}

func (w *world) create(objects ...client.Object) {
	w.Helper()
	for _, object := range objects {
		if err := w.client.Create(w.Context(), object); err != nil {
			w.Fatal(err)
		}
	}
}

func (w *world) remove(objects ...client.Object) {
	w.Helper()
	for _, object := range objects {
		object.SetNamespace(w.namespace)
		if err := w.client.Delete(w.Context(), object); err != nil {
			w.Fatal(err)
		}
	}
}

// delete deletes the MillwrightMachine. Like an API server it begins a new generation.
func (w *world) delete() {
	w.Helper()
	w.changeInfra(func(m *infrav1.MillwrightMachine) { m.Generation++ })
	w.remove(w.infra())
}

// wantReady checks the condition Ready.
func (w *world) wantReady(status metav1.ConditionStatus, reason string, says ...string) {
	w.Helper()
	w.wantCondition(infrav1.ConditionReady, status, reason, says...)
}

func (w *world) wantCondition(kind string, status metav1.ConditionStatus, reason string, says ...string) {
	w.Helper()
	got := meta.FindStatusCondition(w.infra().Status.Conditions, kind)
	if got == nil {
		w.Fatalf("there is no condition %s; want %s %s", kind, status, reason)
	}
	if got.Status != status || got.Reason != reason {
		w.Errorf("%s is %s %s (%s), want %s %s", kind, got.Status, got.Reason, got.Message, status, reason)
	}
	for _, words := range says {
		if !strings.Contains(got.Message, words) {
			w.Errorf("%s says %q, want %q in it", kind, got.Message, words)
		}
	}
}

// wantNothing checks that the object is as it was and that nobody asked the driver.
func (w *world) wantNothing(before *infrav1.MillwrightMachine) {
	w.Helper()
	was, _ := json.Marshal(before)
	is, _ := json.Marshal(w.infra())
	if string(was) != string(is) {
		w.Errorf("was %s\nis  %s", was, is)
	}
	if len(w.driver.calls) != 0 {
		w.Errorf("the driver was asked: %v", w.driver.calls)
	}
}

// told takes the events that were sent since it was last called.
func (w *world) told() []string {
	var events []string
	for {
		select {
		case event := <-w.events.Events:
			events = append(events, event)
		default:
			return events
		}
	}
}

func newClass(namespace string) *v1alpha1.MachineClass {
	return &v1alpha1.MachineClass{
		ObjectMeta:   metav1.ObjectMeta{Namespace: namespace, Name: "small", Finalizers: []string{infrav1.ClassFinalizer}},
		ProviderSpec: *raw(`{"size":"small"}`),
	}
}
