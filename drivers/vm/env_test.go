package vm_test

import (
	"context"
	"encoding/json"
	"maps"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
	"github.com/millwright-dev/millwright/drivers/vm"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

func TestMain(m *testing.M) { env.Main(m) }

type object = map[string]any

const (
	userData = "#millwright-guest\ntoken: hunter2.swordfish"
	finding  = env.WaitTimeout // limits every wait
)

// testDriver is a driver with a namespace of a real API server. It has the shipped role.
type testDriver struct {
	t testing.TB
	*vm.Driver
	*env.Env
	// cluster is the client of the driver; admin has all permissions.
	cluster, admin client.WithWatch
	used           *env.Used // by cluster
	options        vm.Options
	class          *v1alpha1.MachineClass
	secret         *corev1.Secret
}

func newTestDriver(t testing.TB, options vm.Options) *testDriver {
	t.Helper()
	e := env.New(t)
	w := &testDriver{t: t, Env: e, used: &env.Used{}, secret: &corev1.Secret{Data: map[string][]byte{"userData": []byte(userData)}}}
	w.admin = newClient(t, e)
	access := e.UserWith(t, "config/rbac/driver-vm-role.yaml")
	w.used.Record(access)
	cluster, err := vm.NewClient(access)
	if err != nil {
		t.Fatal(err)
	}
	w.cluster = cluster
	w.class = w.newClass(nil)
	if options.Installation == "" {
		options.Installation = "test"
	}
	return w.with(options)
}

// newClient returns a client with all permissions.
func newClient(t testing.TB, e *env.Env) client.WithWatch {
	t.Helper()
	scheme := env.NewScheme()
	if err := vmv1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	c, err := client.NewWithWatch(e.Admin, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// with returns a copy with another driver.
func (w *testDriver) with(options vm.Options) *testDriver {
	if options.Client == nil {
		options.Client = w.cluster
	}
	other := *w
	other.options, other.Driver = options, vm.New(options)
	return &other
}

// withClass returns a copy with changes of the provider specification.
func (w *testDriver) withClass(changes object) *testDriver {
	other := *w
	other.class = w.newClass(changes)
	return &other
}

func (w *testDriver) newClass(changes object) *v1alpha1.MachineClass {
	pool := ""
	if w.Env != nil {
		pool = w.Namespace
	}
	spec := object{
		"vmPool": pool, "size": "small",
		"tags":  object{"kubernetes.io/cluster/shoot": "1", "kubernetes.io/role/worker": "1", "team": "a"},
		"image": object{"url": "https://example.com/disk.img"},
	}
	maps.Copy(spec, changes)
	raw, err := json.Marshal(spec)
	if err != nil {
		w.t.Fatal(err)
	}
	return classOf(raw)
}

func machine(name, providerID string) *v1alpha1.Machine {
	m := fixture.In("shop", fixture.Named(name, fixture.Machine()))
	m.Spec.ProviderID = providerID
	return m
}

// unchanged checks that a call does not modify its request.
func (w *testDriver) unchanged(m *v1alpha1.Machine, call func()) {
	w.t.Helper()
	before := []any{m.DeepCopy(), w.class.DeepCopy(), w.secret.DeepCopy()}
	call()
	if diff := cmp.Diff(before, []any{m, w.class, w.secret}); diff != "" {
		w.t.Errorf("the driver changed the request (-before +after):\n%s", diff)
	}
}

func (w *testDriver) create(ctx context.Context, name string) (resp *driver.CreateMachineResponse, err error) {
	w.t.Helper()
	m := machine(name, "")
	w.unchanged(m, func() {
		resp, err = w.CreateMachine(ctx, &driver.CreateMachineRequest{Machine: m, MachineClass: w.class, Secret: w.secret})
	})
	return resp, err
}

func (w *testDriver) mustCreate(name string) *driver.CreateMachineResponse {
	w.t.Helper()
	resp, err := w.create(w.t.Context(), name)
	if err != nil {
		w.t.Fatalf("creating %s: %v", name, err)
	}
	return resp
}

func (w *testDriver) status(name, providerID string) (resp *driver.GetMachineStatusResponse, err error) {
	w.t.Helper()
	m := machine(name, providerID)
	w.unchanged(m, func() {
		resp, err = w.GetMachineStatus(w.t.Context(), &driver.GetMachineStatusRequest{Machine: m, MachineClass: w.class, Secret: w.secret})
	})
	return resp, err
}

func (w *testDriver) remove(name, providerID string) (err error) {
	w.t.Helper()
	m := machine(name, providerID)
	w.unchanged(m, func() {
		_, err = w.DeleteMachine(w.t.Context(), &driver.DeleteMachineRequest{Machine: m, MachineClass: w.class, Secret: w.secret})
	})
	return err
}

func (w *testDriver) mustRemove(name, providerID string) {
	w.t.Helper()
	if err := w.remove(name, providerID); err != nil {
		w.t.Fatalf("deleting %s: %v", name, err)
	}
}

func (w *testDriver) list() map[string]string {
	w.t.Helper()
	resp, err := w.ListMachines(w.t.Context(), &driver.ListMachinesRequest{MachineClass: w.class, Secret: w.secret})
	if err != nil {
		w.t.Fatalf("listing: %v", err)
	}
	return resp.MachineList
}

func wantCode(t testing.TB, err error, want codes.Code) {
	t.Helper()
	if got := status.Code(err); got != want {
		t.Errorf("got code %v, want %v (%v)", got, want, err)
	}
}

func (w *testDriver) vms() []vmv1alpha1.VirtualMachine {
	w.t.Helper()
	list := &vmv1alpha1.VirtualMachineList{}
	w.must(w.admin.List(w.t.Context(), list, client.InNamespace(w.Namespace)))
	return list.Items
}

// theVM returns the only VM.
func (w *testDriver) theVM() *vmv1alpha1.VirtualMachine {
	w.t.Helper()
	vms := w.vms()
	if len(vms) != 1 {
		w.t.Fatalf("got %d VMs, want 1", len(vms))
	}
	return &vms[0]
}

func (w *testDriver) secrets() []corev1.Secret {
	w.t.Helper()
	list := &corev1.SecretList{}
	w.must(w.admin.List(w.t.Context(), list, client.InNamespace(w.Namespace)))
	return list.Items
}

func (w *testDriver) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// awaitVM waits for the only VM.
func (w *testDriver) awaitVM() *vmv1alpha1.VirtualMachine {
	w.t.Helper()
	gomega.NewWithT(w.t).Eventually(w.vms).WithTimeout(finding).WithPolling(10 * time.Millisecond).Should(gomega.HaveLen(1))
	return w.theVM()
}

// Conditions that the VM controller sets.
var (
	hasHost       = metav1.Condition{Type: vmv1alpha1.ConditionScheduled, Status: metav1.ConditionTrue, Reason: "Scheduled"}
	unschedulable = metav1.Condition{
		Type: vmv1alpha1.ConditionScheduled, Status: metav1.ConditionFalse, Reason: vmv1alpha1.ReasonUnschedulable,
		Message: "0/2 nodes are available: 2 Insufficient memory.",
	}
)

// setCondition sets a condition as the VM controller does.
func (w *testDriver) setCondition(of *vmv1alpha1.VirtualMachine, condition metav1.Condition) {
	w.t.Helper()
	w.changeStatus(of, func(s *vmv1alpha1.VirtualMachineStatus) { meta.SetStatusCondition(&s.Conditions, condition) })
}

func (w *testDriver) changeStatus(of *vmv1alpha1.VirtualMachine, change func(*vmv1alpha1.VirtualMachineStatus)) {
	w.t.Helper()
	changed := of.DeepCopy()
	change(&changed.Status)
	if err := w.admin.Status().Patch(w.t.Context(), changed, client.MergeFrom(of)); client.IgnoreNotFound(err) != nil && w.t.Context().Err() == nil {
		w.t.Error(err) // the writes of hosts may fail after the test
	}
}

// hosts acts as a VM controller that assigns a host to every VM until the test completes.
func (w *testDriver) hosts() {
	w.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	changes, err := w.admin.Watch(ctx, &vmv1alpha1.VirtualMachineList{}, client.InNamespace(w.Namespace))
	w.must(err)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for event := range changes.ResultChan() {
			v, ok := event.Object.(*vmv1alpha1.VirtualMachine)
			if ok && len(v.Status.Conditions) == 0 {
				w.changeStatus(v, func(s *vmv1alpha1.VirtualMachineStatus) {
					s.Addresses = []string{"10.77.0.16"}
					meta.SetStatusCondition(&s.Conditions, hasHost)
				})
			}
		}
	}()
	w.t.Cleanup(func() { changes.Stop(); cancel(); <-ended })
}

// anyVM returns a VM without an identity.
func (w *testDriver) anyVM() *vmv1alpha1.VirtualMachine {
	return &vmv1alpha1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{GenerateName: "any-", Namespace: w.Namespace}}
}
