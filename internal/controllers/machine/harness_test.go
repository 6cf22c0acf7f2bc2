package machine

import (
	"context"
	"errors"
	"maps"
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
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/fake"
	"github.com/millwright-dev/millwright/internal/lifecycle/bootstrap"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
	"github.com/millwright-dev/millwright/internal/lifecycle/replacement"
	"github.com/millwright-dev/millwright/internal/reconcile/fieldindex"
	"github.com/millwright-dev/millwright/internal/reconcile/target"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/fakeclient"
	"github.com/millwright-dev/millwright/test/support/fixture"
	"github.com/millwright-dev/millwright/test/support/lockstep"
)

func TestMain(m *testing.M) { env.Main(m) }

// Names that the tests use by default.
const (
	namespace   = "shoot"
	machineName = "m1"
	className   = "small"
	userData    = "password: hunter2, join with <<BOOTSTRAP_TOKEN>> as <<MACHINE_NAME>>"
)

// Values of the flags.
const (
	creationTimeout = 20 * time.Minute
	healthTimeout   = 10 * time.Minute
)

// harness is a Machine controller with two clusters, a driver and a clock.
type harness struct {
	*lockstep.Harness
	control    client.WithWatch
	target     *fakeTarget
	engine     *instance.Engine
	controller *Controller
	events     *record.FakeRecorder
	nodeEvents *record.FakeRecorder
}

// fakeTarget is a target cluster that is available since the given time, or never if that is zero.
type fakeTarget struct {
	client client.Client
	since  time.Time
}

func (f *fakeTarget) Client() client.Client { return f.client }

func (f *fakeTarget) Ready() bool { return !f.since.IsZero() }

func (f *fakeTarget) ReadySince() time.Time { return f.since }

func (f *fakeTarget) Watch(client.Object, handler.EventHandler, ...predicate.Predicate) source.Source {
	return nil // other tests cover the watches
}

// newHarness returns a harness with a class, its Secret, and further objects of the control cluster.
func newHarness(t *testing.T, objects ...client.Object) *harness {
	t.Helper()
	h := &harness{Harness: &lockstep.Harness{
		T: t, Key: types.NamespacedName{Namespace: namespace, Name: machineName},
		Clock: testingclock.NewFakeClock(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)),
	}}
	h.begin(newFake(append([]client.Object{newClass(namespace), newSecret(namespace)}, objects...)...), newFake())
	return h
}

func newFake(objects ...client.Object) client.WithWatch {
	return fakeclient.NewBuilder(few).WithObjects(objects...).
		WithStatusSubresource(&v1alpha1.Machine{}, &corev1.Node{}).Build()
}

// newServerHarness is like newHarness, but uses a real API server for both clusters. It has resource versions,
// generations, finalizers and status subresources, which a fake client lacks.
func newServerHarness(t *testing.T) *harness {
	t.Helper()
	e := env.New(t)
	c, err := client.NewWithWatch(e.Admin, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	h := &harness{Harness: &lockstep.Harness{
		T: t, Key: types.NamespacedName{Namespace: e.Namespace, Name: machineName}, Clock: testingclock.NewFakeClock(time.Now()),
	}}
	h.begin(c, c)
	h.create(fixture.In(e.Namespace, newClass(e.Namespace)), newSecret(e.Namespace))
	return h
}

// few contains the kinds that the fake clients need. The creation of a fake client iterates over its scheme, and
// the full scheme has hundreds of kinds.
var few = newFewKinds()

func newFewKinds() *runtime.Scheme {
	made := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(made); err != nil {
			panic(err) // duplicate kind in this list
		}
	}
	return made
}

var (
	scheme = env.NewScheme()
	codecs = serializer.NewCodecFactory(scheme)
)

// indexes contains the indexes of the caches of both clusters.
var indexes = newIndexes()

func newIndexes() lockstep.Indexes {
	made := lockstep.Indexes{replacement.ByPool: replacement.Pools}
	maps.Copy(made, target.Indexes)
	_ = fieldindex.Add(context.Background(), made) // this indexer cannot fail
	return made
}

func (h *harness) begin(control, nodes client.WithWatch) {
	h.control = control
	h.target = &fakeTarget{client: nodes, since: h.Clock.Now()}
	h.Driver = newDriver()
	h.restart()
}

func newDriver() *fake.Driver {
	return fake.New(fake.Config{
		ProviderID: func(machine *v1alpha1.Machine, _ int) string { return "sim:///" + machine.Name },
		NodeName:   func(machine *v1alpha1.Machine) string { return "node-" + machine.Namespace + "-" + machine.Name },
		Addresses:  addresses,
	})
}

// addresses contains the addresses of every VM.
var addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.1.2.3"}}

// restart replaces the manager with a new one.
func (h *harness) restart() { h.restartWith(h.Driver) }

func (h *harness) restartWith(d driver.Driver) {
	h.events, h.nodeEvents = record.NewFakeRecorder(100), record.NewFakeRecorder(1000)
	h.engine = h.NewEngine(d)
	seen := targetView{h.target, h.Record(h.target.client.(client.WithWatch), indexes)}
	h.controller = New(Options{
		Client: h.Record(h.control, indexes),
		Target: seen,
		Tokens: &bootstrap.Tokens{Target: seen.client, Installation: h.Key.Namespace, Clock: h.Clock},
		Engine: h.engine,
		Events: h.events, NodeEvents: h.nodeEvents,
		Clock: h.Clock,

		CreationTimeout: creationTimeout,
		Health:          Health{Timeout: healthTimeout, OutagePeriod: 24 * time.Hour}, // only the tests of outages use it
		NodeConditions:  []string{"KernelDeadlock", "ReadonlyFilesystem", "DiskPressure", "NetworkUnavailable"},
	})
	h.Reconciler = h.controller
}

// useClient replaces the client of the control cluster.
func (h *harness) useClient(c client.Client) { h.controller.Client, h.controller.edge.Reader = c, c }

// targetView is the target cluster with a client that records requests.
type targetView struct {
	*fakeTarget
	client client.Client
}

func (v targetView) Client() client.Client { return v.client }

// withoutTarget removes the target cluster, as --target-kubeconfig=none does.
func (h *harness) withoutTarget() *harness {
	h.controller.Target, h.controller.Tokens = nil, nil
	return h
}

// unnamed makes the driver return no node names, as it does if no node joins.
func (h *harness) unnamed() {
	h.Driver.Configure(func(config *fake.Config) {
		config.NodeName = func(*v1alpha1.Machine) string { return "" }
	})
}

// ignoreDeletes sets whether the driver accepts deletions without effect.
func (h *harness) ignoreDeletes(ignored bool) {
	h.Driver.Configure(func(config *fake.Config) { config.IgnoreDeletes = ignored })
}

// addVM adds a VM that this controller has not created.
func (h *harness) addVM(name, providerID string) {
	h.Driver.Add(vmOf(h.Key.Namespace, name, providerID))
}

func vmOf(namespace, name, providerID string) fake.VM {
	return fake.VM{
		ProviderID: providerID, Namespace: namespace, Machine: name, NodeName: "node-" + namespace + "-" + name,
		Class: namespace + "/" + className, Initialized: true,
	}
}

// removeVMs removes all VMs, as the provider might.
func (h *harness) removeVMs() {
	for _, vm := range h.Driver.VMs() {
		h.Driver.Remove(vm.ProviderID)
	}
}

// hasVM reports whether there is a VM of the Machine.
func (h *harness) hasVM(name string) bool {
	return slices.ContainsFunc(h.Driver.VMs(), func(vm fake.VM) bool { return vm.Machine == name })
}

// methods lists the driver calls so far.
func (h *harness) methods() []fake.Method {
	var methods []fake.Method
	for _, call := range h.Driver.Calls() {
		methods = append(methods, call.Method)
	}
	return methods
}

// secrets returns the Secrets in the requests to create a VM.
func (h *harness) secrets() []*corev1.Secret {
	var secrets []*corev1.Secret
	for _, request := range fake.Requests[*driver.CreateMachineRequest](h.Driver) {
		secrets = append(secrets, request.Secret)
	}
	return secrets
}

// machine reads the Machine.
func (h *harness) machine() *v1alpha1.Machine {
	h.Helper()
	machine := &v1alpha1.Machine{}
	if err := h.control.Get(h.Context(), h.Key, machine); err != nil {
		h.Fatal(err)
	}
	return machine
}

// create creates objects in the control cluster.
func (h *harness) create(objects ...client.Object) {
	h.Helper()
	for _, object := range objects {
		if err := h.control.Create(h.Context(), object); err != nil {
			h.Fatal(err)
		}
	}
}

// declare creates the Machine after it applies changes to it.
func (h *harness) declare(changes ...func(*v1alpha1.Machine)) {
	h.Helper()
	machine := newMachine(h.Key.Namespace, h.Clock.Now())
	for _, change := range changes {
		change(machine)
	}
	status := machine.Status
	h.create(machine)
	machine.Status = status
	if err := h.control.Status().Update(h.Context(), machine); err != nil {
		h.Fatal(err)
	}
}

// change edits an object as a user would.
func change[O client.Object](h *harness, object O, edit func(O)) {
	h.Helper()
	c := client.Client(h.control)
	if _, ok := any(object).(*corev1.Node); ok {
		c = h.target.client
	}
	lockstep.Change(h.Harness, c, object, edit)
}

// delete deletes the Machine.
func (h *harness) delete() {
	h.Helper()
	if err := h.control.Delete(h.Context(), h.machine()); err != nil {
		h.Fatal(err)
	}
}

// gone reports whether the Machine no longer exists.
func (h *harness) gone() bool {
	h.Helper()
	err := h.control.Get(h.Context(), h.Key, &v1alpha1.Machine{})
	if client.IgnoreNotFound(err) != nil {
		h.Fatal(err)
	}
	return err != nil
}

// join creates the node or updates its status with these conditions.
func (h *harness) join(conditions ...corev1.NodeCondition) {
	h.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: h.nodeName(), CreationTimestamp: metav1.NewTime(h.Clock.Now())}}
	err := h.target.client.Get(h.Context(), client.ObjectKeyFromObject(node), node)
	if err != nil {
		if err := h.target.client.Create(h.Context(), node); err != nil {
			h.Fatal(err)
		}
	}
	node.Status.Conditions = conditions
	if err := h.target.client.Status().Update(h.Context(), node); err != nil {
		h.Fatal(err)
	}
}

// nodeName returns the name that the driver gives the Machine's node.
func (h *harness) nodeName() string { return "node-" + h.Key.Namespace + "-" + h.Key.Name }

// node reads the node. It returns nil if the node does not exist.
func (h *harness) node() *corev1.Node {
	h.Helper()
	node := &corev1.Node{}
	err := h.target.client.Get(h.Context(), types.NamespacedName{Name: h.nodeName()}, node)
	if client.IgnoreNotFound(err) != nil {
		h.Fatal(err)
	}
	if err != nil {
		return nil
	}
	return node
}

// tokens returns the existing bootstrap tokens of the Machine.
func (h *harness) tokens() []corev1.Secret {
	h.Helper()
	secrets := &corev1.SecretList{}
	if err := h.target.client.List(h.Context(), secrets, client.InNamespace("kube-system")); err != nil {
		h.Fatal(err)
	}
	return slices.DeleteFunc(secrets.Items, func(s corev1.Secret) bool {
		return s.Type != corev1.SecretTypeBootstrapToken || !strings.Contains(string(s.Data["description"]), h.Key.String())
	})
}

// takeEvents returns the events on Machines that were sent since the last call.
func (h *harness) takeEvents() []string { return lockstep.TakeEvents(h.events) }

// remove deletes an object of the control cluster.
func (h *harness) remove(object client.Object) {
	h.Helper()
	if err := h.control.Delete(h.Context(), object); err != nil {
		h.Fatal(err)
	}
}

var errDown = errors.New("the API server is down")

// dropNode removes the node.
func (h *harness) dropNode() {
	h.Helper()
	change(h, h.node(), func(n *corev1.Node) { n.Finalizers = nil })
	if err := h.target.client.Delete(h.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: h.nodeName()}}); err != nil {
		h.Fatal(err)
	}
}

func newClass(namespace string) *v1alpha1.MachineClass {
	return fixture.In(namespace, fixture.Named(className, fixture.MachineClass(func(class *v1alpha1.MachineClass) {
		class.Finalizers = []string{v1alpha1.FinalizerMCM}
		class.SecretRef.Name = className
	})))
}

func newSecret(namespace string) *corev1.Secret {
	return fixture.In(namespace, fixture.Named(className, fixture.Secret(func(secret *corev1.Secret) {
		secret.Data = map[string][]byte{"userData": []byte(userData), "apiKey": []byte("s3cr3t-k3y-of-the-cloud")}
	})))
}

func newMachine(namespace string, created time.Time) *v1alpha1.Machine {
	return fixture.Named(machineName, fixture.Machine(func(machine *v1alpha1.Machine) {
		machine.Namespace, machine.CreationTimestamp = namespace, metav1.NewTime(created)
		machine.Labels, machine.Spec.Class.Name = nil, className
	}))
}

// owned sets a MachineSet as the owner of the Machine.
func owned(machine *v1alpha1.Machine) {
	fixture.OwnedBy(fixture.MachineSet(), machine)
}

// restored changes a Machine like a migration of the control plane: its VM and node are known, but its status is
// lost.
func restored(machine *v1alpha1.Machine) {
	machine.Spec.ProviderID = "sim:///" + machine.Name
	machine.Labels = map[string]string{v1alpha1.NodeLabelKey: "node-" + machine.Namespace + "-" + machine.Name}
	machine.Finalizers = []string{v1alpha1.FinalizerMCM}
}

// inPhase returns a change that sets the phase and what it implies.
func inPhase(phase v1alpha1.MachinePhase) func(*v1alpha1.Machine) {
	return func(machine *v1alpha1.Machine) {
		restored(machine)
		machine.Annotations = map[string]string{v1alpha1.AnnotationKeyMachinePriority: "3"}
		machine.Status.CurrentStatus = v1alpha1.CurrentStatus{Phase: phase, LastUpdateTime: machine.CreationTimestamp}
		machine.Status.LastOperation = v1alpha1.LastOperation{
			Type: v1alpha1.MachineOperationCreate, State: v1alpha1.MachineStateProcessing,
			Description: descriptionCreating, LastUpdateTime: machine.CreationTimestamp,
		}
	}
}

func condition(kind, value string) corev1.NodeCondition {
	return corev1.NodeCondition{Type: corev1.NodeConditionType(kind), Status: corev1.ConditionStatus(value), Reason: "Test"}
}

// ready is the condition of a healthy node.
var ready = condition("Ready", "True")

// countReads counts the reads of a client.
type countReads struct {
	client.Client
	reads *int
}

func (c countReads) Get(ctx context.Context, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
	*c.reads++
	return c.Client.Get(ctx, key, object, options...)
}
