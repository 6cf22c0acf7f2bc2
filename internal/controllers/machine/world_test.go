package machine

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	testingclock "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/internal/lifecycle/bootstrap"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
	"github.com/millwright-dev/millwright/test/env"
)

func TestMain(m *testing.M) { env.Main(m) }

// The names of what every world begins with.
const (
	machineName = "m1"
	className   = "small"
	userData    = "password: hunter2, join with <<BOOTSTRAP_TOKEN>> as <<MACHINE_NAME>>"
)

// The flags' values in every world.
const (
	creationTimeout = 20 * time.Minute
	healthTimeout   = 10 * time.Minute
)

// world is a Machine controller with all that it deals with. Nothing in it runs by
// itself: passes and driver calls are taken in turn by settle.
type world struct {
	*testing.T
	namespace  string
	name       string // of the Machine that the test is about
	clock      *testingclock.FakeClock
	control    client.WithWatch
	target     *fakeTarget
	driver     *scripted
	engine     *instance.Engine
	controller *Controller
	events     *record.FakeRecorder
	nodeEvents *record.FakeRecorder
	// tasks are driver calls that wait to be made.
	tasks []func(context.Context)
	// writes are all requests of the controller that change something.
	writes []write
	// refuse, if set, decides on writes before they are made.
	refuse func(write) error
}

// fakeTarget is a target cluster that answers when it is told to.
type fakeTarget struct {
	client client.Client
	since  time.Time
}

func (f *fakeTarget) Client() client.Client { return f.client }

func (f *fakeTarget) Ready() bool { return !f.since.IsZero() }

func (f *fakeTarget) ReadySince() time.Time { return f.since }

func (f *fakeTarget) Watch(client.Object, handler.EventHandler, ...predicate.Predicate) source.Source {
	return nil // no world sets up watches
}

// newWorld makes a world with a class, its Secret, and further objects of the control
// cluster.
func newWorld(t *testing.T, objects ...client.Object) *world {
	t.Helper()
	w := &world{T: t, namespace: "shoot", name: machineName, clock: testingclock.NewFakeClock(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))}
	w.begin(newFake(append([]client.Object{newClass(w.namespace), newSecret(w.namespace)}, objects...)...), newFake())
	return w
}

func newFake(objects ...client.Object) client.WithWatch {
	return fake.NewClientBuilder().WithScheme(few).WithObjects(objects...).
		WithStatusSubresource(&v1alpha1.Machine{}, &corev1.Node{}).Build()
}

// newServerWorld is newWorld with real API servers, where objects have versions,
// generations, finalizers and status subresources as in life.
func newServerWorld(t *testing.T) *world {
	t.Helper()
	e := env.New(t)
	c, err := client.NewWithWatch(e.Admin, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	w := &world{T: t, namespace: e.Namespace, name: machineName, clock: testingclock.NewFakeClock(time.Now())}
	w.begin(c, c)
	w.create(newClass(w.namespace), newSecret(w.namespace))
	return w
}

// few are the kinds that a world without API servers has. A fake client goes through all
// that it may have to do with when it is made, and there are hundreds of worlds.
var few = newFewKinds()

func newFewKinds() *runtime.Scheme {
	made := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(made); err != nil {
			panic(err) // two kinds of one name: a mistake in this list
		}
	}
	return made
}

var (
	scheme = env.NewScheme()
	codecs = serializer.NewCodecFactory(scheme)
)

func (w *world) begin(control, nodes client.WithWatch) {
	w.control = control
	w.target = &fakeTarget{client: nodes, since: w.clock.Now()}
	w.driver = &scripted{vms: map[string]string{}, errors: map[instance.Method][]error{}}
	w.restart(w.driver)
}

// restart ends the manager and starts another one.
func (w *world) restart(d driver.Driver) {
	w.tasks = nil
	w.events, w.nodeEvents = record.NewFakeRecorder(100), record.NewFakeRecorder(1000)
	w.engine = instance.New(d, instance.Options{
		Run: func(task func(context.Context)) bool {
			w.tasks = append(w.tasks, task)
			return true
		},
		Wake:  func(instance.Key) {},
		Clock: w.clock,
	})
	seen := targetView{w.target, w.recorded(w.target.client.(client.WithWatch))}
	w.controller = New(Options{
		Client: w.recorded(w.control),
		Target: seen,
		Tokens: &bootstrap.Tokens{Target: seen.client, Installation: w.namespace, Clock: w.clock},
		Engine: w.engine,
		Events: w.events, NodeEvents: w.nodeEvents,
		Clock: w.clock,

		CreationTimeout: creationTimeout,
		Health:          Health{Timeout: healthTimeout, OutagePeriod: 24 * time.Hour}, // so that only outages' own tests see it
		NodeConditions:  []string{"KernelDeadlock", "ReadonlyFilesystem", "DiskPressure", "NetworkUnavailable"},
	})
}

// targetView is the world's target with a client that records.
type targetView struct {
	*fakeTarget
	client client.Client
}

func (v targetView) Client() client.Client { return v.client }

// withoutTarget takes the target cluster away for good, as --target-kubeconfig=none does.
func (w *world) withoutTarget() *world {
	w.controller.Target, w.controller.Tokens = nil, nil
	return w
}

// key is that of the Machine that the test is about.
func (w *world) key() types.NamespacedName {
	return types.NamespacedName{Namespace: w.namespace, Name: w.name}
}

// pass takes one pass over the Machine.
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

// settle takes passes and makes calls until nothing more happens but by waiting for a
// second or more, as events bring passes in life. It answers what the last pass did.
func (w *world) settle() ctrl.Result {
	w.Helper()
	for range 20 {
		before := len(w.writes)
		result := w.pass()
		if w.call() || len(w.writes) != before {
			continue
		}
		if result.RequeueAfter <= 0 || result.RequeueAfter >= time.Second {
			return result
		}
		w.clock.Step(result.RequeueAfter)
	}
	w.Fatalf("the Machine never comes to rest; its last writes:\n%s", w.said())
	return ctrl.Result{}
}

// settleAfter lets time pass before.
func (w *world) settleAfter(d time.Duration) ctrl.Result {
	w.Helper()
	w.clock.Step(d)
	return w.settle()
}

// machine reads the Machine.
func (w *world) machine() *v1alpha1.Machine {
	w.Helper()
	machine := &v1alpha1.Machine{}
	if err := w.control.Get(w.Context(), w.key(), machine); err != nil {
		w.Fatal(err)
	}
	return machine
}

// create makes objects in the control cluster.
func (w *world) create(objects ...client.Object) {
	w.Helper()
	for _, object := range objects {
		if err := w.control.Create(w.Context(), object); err != nil {
			w.Fatal(err)
		}
	}
}

// declare makes the Machine, changed as the test wants it.
func (w *world) declare(changes ...func(*v1alpha1.Machine)) {
	w.Helper()
	machine := newMachine(w.namespace, w.clock.Now())
	for _, change := range changes {
		change(machine)
	}
	status := machine.Status
	w.create(machine)
	machine.Status = status
	if err := w.control.Status().Update(w.Context(), machine); err != nil {
		w.Fatal(err)
	}
}

// change edits an object as a user would.
func change[O client.Object](w *world, object O, edit func(O)) {
	w.Helper()
	c := w.control
	if _, ok := any(object).(*corev1.Node); ok {
		c = w.target.client.(client.WithWatch)
	}
	if err := c.Get(w.Context(), client.ObjectKeyFromObject(object), object); err != nil {
		w.Fatal(err)
	}
	edit(object)
	if err := c.Update(w.Context(), object); err != nil {
		w.Fatal(err)
	}
}

// delete deletes the Machine.
func (w *world) delete() {
	w.Helper()
	if err := w.control.Delete(w.Context(), w.machine()); err != nil {
		w.Fatal(err)
	}
}

// gone reports whether the Machine no longer exists.
func (w *world) gone() bool {
	w.Helper()
	err := w.control.Get(w.Context(), w.key(), &v1alpha1.Machine{})
	if client.IgnoreNotFound(err) != nil {
		w.Fatal(err)
	}
	return err != nil
}

// join has the node appear, or report, with these conditions.
func (w *world) join(conditions ...corev1.NodeCondition) {
	w.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: w.nodeName(), CreationTimestamp: metav1.NewTime(w.clock.Now())}}
	err := w.target.client.Get(w.Context(), client.ObjectKeyFromObject(node), node)
	if err != nil {
		if err := w.target.client.Create(w.Context(), node); err != nil {
			w.Fatal(err)
		}
	}
	node.Status.Conditions = conditions
	if err := w.target.client.Status().Update(w.Context(), node); err != nil {
		w.Fatal(err)
	}
}

// nodeName is the name that the scripted driver gives to the Machine's node.
func (w *world) nodeName() string { return "node-" + w.namespace + "-" + w.name }

// node reads the node; nil if there is none.
func (w *world) node() *corev1.Node {
	w.Helper()
	node := &corev1.Node{}
	err := w.target.client.Get(w.Context(), types.NamespacedName{Name: w.nodeName()}, node)
	if client.IgnoreNotFound(err) != nil {
		w.Fatal(err)
	}
	if err != nil {
		return nil
	}
	return node
}

// tokens are the bootstrap tokens that exist for the Machine.
func (w *world) tokens() []corev1.Secret {
	w.Helper()
	secrets := &corev1.SecretList{}
	if err := w.target.client.List(w.Context(), secrets, client.InNamespace("kube-system")); err != nil {
		w.Fatal(err)
	}
	return slices.DeleteFunc(secrets.Items, func(s corev1.Secret) bool {
		return s.Type != corev1.SecretTypeBootstrapToken || !strings.Contains(string(s.Data["description"]), w.key().String())
	})
}

// told takes the events on Machines that were sent since it was last called.
func (w *world) told() []string { return drained(w.events) }

// toldOnNodes does the same for those on nodes.
func (w *world) toldOnNodes() []string { return drained(w.nodeEvents) }

func drained(recorder *record.FakeRecorder) []string {
	var events []string
	for {
		select {
		case event := <-recorder.Events:
			events = append(events, event)
		default:
			return events
		}
	}
}

func (w *world) keyOf(object client.Object) types.NamespacedName {
	return client.ObjectKeyFromObject(object)
}

// remove deletes an object of the control cluster.
func (w *world) remove(object client.Object) {
	w.Helper()
	if err := w.control.Delete(w.Context(), object); err != nil {
		w.Fatal(err)
	}
}

func (w *world) request() ctrl.Request { return ctrl.Request{NamespacedName: w.key()} }

var errDown = errors.New("the API server is down")

// dropNode has the node vanish.
func (w *world) dropNode() {
	w.Helper()
	change(w, w.node(), func(n *corev1.Node) { n.Finalizers = nil })
	if err := w.target.client.Delete(w.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: w.nodeName()}}); err != nil {
		w.Fatal(err)
	}
}
