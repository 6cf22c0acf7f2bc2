package capi

import (
	"cmp"
	"encoding/json"
	"fmt"
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
	"sigs.k8s.io/controller-runtime/pkg/client"
	fakeclient "sigs.k8s.io/controller-runtime/pkg/client/fake"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/fake"
	"github.com/millwright-dev/millwright/driver/registry"
	"github.com/millwright-dev/millwright/internal/controllers/capi/core"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/fixture"
	"github.com/millwright-dev/millwright/test/support/lockstep"
)

func TestMain(m *testing.M) { env.Main(m) }

// The names of the objects that every test starts with.
const (
	clusterName   = "c1"
	machineName   = "m1"
	bootstrapName = "m1-bootstrap"
	className     = "small"
	joinTimeout   = 20 * time.Minute
)

// bootstrapData contains placeholders, which MCM's API would replace, and bytes that are not valid text.
const bootstrapData = "#cloud-config\njoin: <<BOOTSTRAP_TOKEN>> as <<MACHINE_NAME>>\n\x00\xff"

// harness is a controller of MillwrightMachines with a fake client, driver, and clock.
type harness struct {
	*lockstep.Harness
	client     client.WithWatch
	engine     *instance.Engine
	controller *Controller
	events     *record.FakeRecorder
	// made is the number of VMs that the driver has created.
	made int
}

// scheme is used by all tests without an API server.
var scheme = newScheme(core.V1Beta2)

// newScheme returns a scheme with one version of Cluster API's kinds.
func newScheme(version schema.GroupVersion) *runtime.Scheme {
	scheme := env.NewScheme()
	core.AddToScheme(scheme, version)
	if err := infrav1.AddToScheme(scheme); err != nil {
		panic(err) // two kinds with the same name
	}
	return scheme
}

// newHarness returns a harness with a Machine that waits for its VM, changed by the given functions.
func newHarness(t *testing.T, changes ...func(*given)) *harness {
	t.Helper()
	clock := testingclock.NewFakeClock(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
	g := newGiven(fixture.Namespace, clock.Now())
	for _, change := range changes {
		change(g)
	}
	// No test uses server-side apply, so the field managers, which are expensive to create, are not needed.
	return newHarnessOf(t, clock, fixture.Namespace, fakeclient.NewClientBuilder().WithScheme(scheme).
		WithTypeConverters(managedfields.NewDeducedTypeConverter()).WithObjects(g.objects()...).
		WithStatusSubresource(&infrav1.MillwrightMachine{}).Build())
}

func newHarnessOf(t *testing.T, clock *testingclock.FakeClock, namespace string, c client.WithWatch) *harness {
	h := &harness{client: c, Harness: &lockstep.Harness{
		T: t, Key: types.NamespacedName{Namespace: namespace, Name: machineName}, Clock: clock,
	}}
	h.Driver = newDriver(&h.made)
	h.restart()
	return h
}

// newDriver returns a driver that counts the VMs that it creates.
func newDriver(made *int) *fake.Driver {
	return fake.New(fake.Config{
		ProviderID: func(*v1alpha1.Machine, int) string {
			*made++
			return fmt.Sprintf("test:///vm-%d", *made)
		},
		LastKnownState: "note",
		Addresses: []corev1.NodeAddress{
			{Type: corev1.NodeHostName, Address: "host"}, {Type: corev1.NodeInternalIP, Address: "10.1.2.3"},
			{Type: corev1.NodeInternalIP, Address: "10.1.2.3"}, {Type: "Pigeon", Address: "roof"}, {Type: corev1.NodeExternalIP},
		},
	})
}

// given holds the objects that a test starts with. A nil object does not exist.
type given struct {
	infra     *infrav1.MillwrightMachine
	machine   *core.Machine
	cluster   *core.Cluster
	bootstrap *corev1.Secret
	more      []client.Object
}

func newGiven(namespace string, now time.Time) *given {
	objectMeta := metav1.ObjectMeta{Namespace: namespace, CreationTimestamp: metav1.NewTime(now), Labels: map[string]string{core.LabelCluster: clusterName}}
	g := &given{
		infra:     &infrav1.MillwrightMachine{ObjectMeta: *objectMeta.DeepCopy()},
		machine:   &core.Machine{ObjectMeta: *objectMeta.DeepCopy()},
		cluster:   &core.Cluster{ObjectMeta: *objectMeta.DeepCopy()},
		bootstrap: secret(namespace, bootstrapName, map[string]string{core.BootstrapData: bootstrapData}),
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

func newClass(namespace string) *v1alpha1.MachineClass {
	return fixture.In(namespace, fixture.Named(className, fixture.MachineClass(func(class *v1alpha1.MachineClass) {
		class.Finalizers, class.ProviderSpec, class.SecretRef = []string{infrav1.ClassFinalizer}, *raw(`{"size":"small"}`), nil
	})))
}

// restart replaces the controller by a new one, as a restart of the manager does.
func (h *harness) restart() {
	h.events = record.NewFakeRecorder(100)
	h.engine = h.NewEngine(h.Driver)
	recorded := h.Record(h.client, indexes())
	h.controller = New(Options{
		Client: recorded, Live: recorded, Engine: h.engine, Events: h.events, Clock: h.Clock, Drivers: registry.Only("test", fake.New(fake.Config{})), JoinTimeout: joinTimeout,
	})
	h.Reconciler = h.controller
}

// ignoreDeletes sets whether the driver accepts deletions without deleting the VM.
func (h *harness) ignoreDeletes(ignored bool) {
	h.Driver.Configure(func(config *fake.Config) { config.IgnoreDeletes = ignored })
}

// matchSpec sets whether the driver finds a VM only with the provider specification that it was created with.
func (h *harness) matchSpec(match bool) {
	h.Driver.Configure(func(config *fake.Config) { config.MatchSpec = match })
}

// addVM adds a VM for a MillwrightMachine that this controller has not created.
func (h *harness) addVM(name, providerID string) {
	h.Helper()
	infra := h.infra()
	class := cmp.Or(infra.Annotations[core.AnnotationClonedFrom], name)
	if ref := infra.Spec.MachineClassRef; ref != nil {
		class = ref.Name
	}
	h.Driver.Add(fake.VM{
		ProviderID: providerID, Namespace: h.Key.Namespace, Machine: name, Class: h.Key.Namespace + "/" + class, Initialized: true,
	})
}

// removeVMs removes all VMs, as if the provider had lost them.
func (h *harness) removeVMs() {
	for _, vm := range h.Driver.VMs() {
		h.Driver.Remove(vm.ProviderID)
	}
}

// calls lists the methods of the driver that have been called.
func (h *harness) calls() []fake.Method {
	var methods []fake.Method
	for _, call := range h.Driver.Calls() {
		methods = append(methods, call.Method)
	}
	return methods
}

func (h *harness) created() []*driver.CreateMachineRequest {
	return fake.Requests[*driver.CreateMachineRequest](h.Driver)
}

func (h *harness) deleted() []*driver.DeleteMachineRequest {
	return fake.Requests[*driver.DeleteMachineRequest](h.Driver)
}

// infra reads the MillwrightMachine.
func (h *harness) infra() *infrav1.MillwrightMachine {
	h.Helper()
	infra := &infrav1.MillwrightMachine{}
	if err := h.client.Get(h.Context(), h.Key, infra); err != nil {
		h.Fatal(err)
	}
	return infra
}

// gone reports whether the MillwrightMachine no longer exists.
func (h *harness) gone() bool {
	h.Helper()
	err := h.client.Get(h.Context(), h.Key, &infrav1.MillwrightMachine{})
	if client.IgnoreNotFound(err) != nil {
		h.Fatal(err)
	}
	return err != nil
}

// change edits an object as a user would.
func change[O client.Object](h *harness, object O, edit func(O)) {
	h.Helper()
	lockstep.Change(h.Harness, h.client, object, edit)
}

func (h *harness) changeInfra(edit func(*infrav1.MillwrightMachine)) {
	h.Helper()
	change(h, h.infra(), edit)
}

func (h *harness) changeMachine(edit func(*core.Machine)) {
	h.Helper()
	change(h, &core.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: h.Key.Namespace, Name: machineName}}, edit)
}

func (h *harness) changeCluster(edit func(*core.Cluster)) {
	h.Helper()
	change(h, &core.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: h.Key.Namespace, Name: clusterName}}, edit)
}

func (h *harness) create(objects ...client.Object) {
	h.Helper()
	for _, object := range objects {
		if err := h.client.Create(h.Context(), object); err != nil {
			h.Fatal(err)
		}
	}
}

func (h *harness) remove(objects ...client.Object) {
	h.Helper()
	for _, object := range objects {
		object.SetNamespace(h.Key.Namespace)
		if err := h.client.Delete(h.Context(), object); err != nil {
			h.Fatal(err)
		}
	}
}

// delete deletes the MillwrightMachine. Like an API server, it increments the generation.
func (h *harness) delete() {
	h.Helper()
	h.changeInfra(func(m *infrav1.MillwrightMachine) { m.Generation++ })
	h.remove(h.infra())
}

// wantReady checks the condition Ready.
func (h *harness) wantReady(status metav1.ConditionStatus, reason string, want ...string) {
	h.Helper()
	h.wantCondition(infrav1.ConditionReady, status, reason, want...)
}

func (h *harness) wantCondition(kind string, status metav1.ConditionStatus, reason string, want ...string) {
	h.Helper()
	got := meta.FindStatusCondition(h.infra().Status.Conditions, kind)
	if got == nil {
		h.Fatalf("condition %s is missing, want %s %s", kind, status, reason)
	}
	if got.Status != status || got.Reason != reason {
		h.Errorf("%s is %s %s (%s), want %s %s", kind, got.Status, got.Reason, got.Message, status, reason)
	}
	for _, text := range want {
		if !strings.Contains(got.Message, text) {
			h.Errorf("the message of %s is %q, want %q in it", kind, got.Message, text)
		}
	}
}

// wantUnchanged checks that the object is unchanged and that the driver was not called.
func (h *harness) wantUnchanged(before *infrav1.MillwrightMachine) {
	h.Helper()
	want, _ := json.Marshal(before)
	got, _ := json.Marshal(h.infra())
	if string(want) != string(got) {
		h.Errorf("got  %s\nwant %s", got, want)
	}
	if calls := h.calls(); len(calls) != 0 {
		h.Errorf("calls %v", calls)
	}
}

// takeEvents returns the events since the last call.
func (h *harness) takeEvents() []string { return lockstep.TakeEvents(h.events) }
