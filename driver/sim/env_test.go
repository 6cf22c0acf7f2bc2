package sim_test

import (
	"context"
	"encoding/json"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/sim"
)

type object = map[string]any

// testDriver is a driver with short methods for its calls.
type testDriver struct {
	t testing.TB
	*sim.Driver
	class *v1alpha1.MachineClass
}

func newTestDriver(t testing.TB, config sim.Config, spec object) testDriver {
	return testDriver{t: t, Driver: sim.New(config), class: newClass(t, "small", spec)}
}

func newClass(t testing.TB, name string, spec object) *v1alpha1.MachineClass {
	t.Helper()
	class := &v1alpha1.MachineClass{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
	if spec != nil {
		raw, err := json.Marshal(spec)
		if err != nil {
			t.Fatal(err)
		}
		class.ProviderSpec = runtime.RawExtension{Raw: raw}
	}
	return class
}

// with returns the driver with another class.
func (w testDriver) with(class *v1alpha1.MachineClass) testDriver {
	w.class = class
	return w
}

func machine(name, providerID string) *v1alpha1.Machine {
	m := &v1alpha1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
	m.Spec.ProviderID = providerID
	return m
}

func (w testDriver) create(name string) (*driver.CreateMachineResponse, error) {
	return w.CreateMachine(w.t.Context(), &driver.CreateMachineRequest{
		Machine: machine(name, ""), MachineClass: w.class, Secret: &corev1.Secret{}})
}

func (w testDriver) mustCreate(name string) *driver.CreateMachineResponse {
	w.t.Helper()
	resp, err := w.create(name)
	if err != nil {
		w.t.Fatalf("creating %s: %v", name, err)
	}
	return resp
}

func (w testDriver) status(name, providerID string) (*driver.GetMachineStatusResponse, error) {
	return w.GetMachineStatus(w.t.Context(), &driver.GetMachineStatusRequest{
		Machine: machine(name, providerID), MachineClass: w.class, Secret: &corev1.Secret{}})
}

func (w testDriver) remove(name, providerID string) error {
	_, err := w.DeleteMachine(w.t.Context(), &driver.DeleteMachineRequest{
		Machine: machine(name, providerID), MachineClass: w.class, Secret: &corev1.Secret{}})
	return err
}

func (w testDriver) mustRemove(name, providerID string) {
	w.t.Helper()
	if err := w.remove(name, providerID); err != nil {
		w.t.Fatalf("deleting %s: %v", name, err)
	}
}

func (w testDriver) initialize(name string) (*driver.InitializeMachineResponse, error) {
	return w.InitializeMachine(w.t.Context(), &driver.InitializeMachineRequest{
		Machine: machine(name, ""), MachineClass: w.class, Secret: &corev1.Secret{}})
}

func (w testDriver) update(name string) (*driver.UpdateMachineResponse, error) {
	return w.UpdateMachine(w.t.Context(), &driver.UpdateMachineRequest{
		Machine: machine(name, ""), MachineClass: w.class, Secret: &corev1.Secret{}})
}

// machine returns a Machine.
func (w testDriver) machine(name, providerID string) *v1alpha1.Machine {
	return machine(name, providerID)
}

// locate returns the location of a machine's VM.
func (w testDriver) locate(m *v1alpha1.Machine) string {
	w.t.Helper()
	resp, err := w.LocateMachine(w.t.Context(), &driver.LocateMachineRequest{Machine: m, MachineClass: w.class, Secret: &corev1.Secret{}})
	if err != nil {
		w.t.Fatalf("locating: %v", err)
	}
	return resp.Location
}

func (w testDriver) list() map[string]string {
	w.t.Helper()
	resp, err := w.ListMachines(w.t.Context(), &driver.ListMachinesRequest{MachineClass: w.class, Secret: &corev1.Secret{}})
	if err != nil {
		w.t.Fatalf("listing: %v", err)
	}
	return resp.MachineList
}

func (w testDriver) vms() []sim.VM {
	w.t.Helper()
	vms, err := w.Cloud().VMs()
	if err != nil {
		w.t.Fatal(err)
	}
	return vms
}

func (w testDriver) histories() map[string]sim.History {
	w.t.Helper()
	entries, err := w.Cloud().Journal()
	if err != nil {
		w.t.Fatal(err)
	}
	return sim.Histories(entries)
}

// start runs the driver until the test completes or until the returned function is called.
func (w testDriver) start() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.Start(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			w.t.Errorf("Start: %v", err)
		}
	})
	w.t.Cleanup(stop)
	return stop
}

// target is a target cluster that counts its requests.
type target struct {
	client.Client
	mu       sync.Mutex
	requests map[string]int
	// fail is called before each request, if set. It must not change after the start.
	fail func(request string) error
}

func newTarget(objects ...client.Object) *target {
	t := &target{requests: map[string]int{}}
	t.Client = fake.NewClientBuilder().WithObjects(objects...).WithInterceptorFuncs(interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.CreateOption) error {
			if err := t.count("create " + kindOf(obj)); err != nil {
				return err
			}
			return c.Create(ctx, obj, opts...)
		},
		Patch: func(ctx context.Context, c client.WithWatch, obj client.Object, p client.Patch, opts ...client.PatchOption) error {
			if err := t.count("patch " + kindOf(obj)); err != nil {
				return err
			}
			return c.Patch(ctx, obj, p, opts...)
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, obj client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
			if err := t.count("patch " + kindOf(obj) + "/" + sub); err != nil {
				return err
			}
			return c.SubResource(sub).Patch(ctx, obj, p, opts...)
		},
	}).Build()
	return t
}

func kindOf(obj client.Object) string {
	switch obj.(type) {
	case *corev1.Node:
		return "node"
	default:
		return "lease"
	}
}

func (t *target) count(request string) error {
	t.mu.Lock()
	t.requests[request]++
	fail := t.fail
	t.mu.Unlock()
	if fail != nil {
		return fail(request)
	}
	return nil
}

// slow is a client whose creations take a second. It reports an error if more than limit creations run at the same
// time.
type slow struct {
	client.Client
	t     testing.TB
	limit int64
	now   atomic.Int64
}

func (s *slow) Create(ctx context.Context, obj client.Object, opts ...client.CreateOption) error {
	if now := s.now.Add(1); now > s.limit {
		s.t.Errorf("%d writes at a time, want at most %d", now, s.limit)
	}
	defer s.now.Add(-1)
	time.Sleep(time.Second)
	return s.Client.Create(ctx, obj, opts...)
}

func (t *target) counts() map[string]int {
	t.mu.Lock()
	defer t.mu.Unlock()
	counts := map[string]int{}
	for request, n := range t.requests {
		counts[request] = n
	}
	return counts
}

// node returns a node, or nil if it does not exist.
func (t *target) node(tb testing.TB, name string) *corev1.Node {
	tb.Helper()
	node := &corev1.Node{}
	err := t.Get(tb.Context(), client.ObjectKey{Name: name}, node)
	if client.IgnoreNotFound(err) != nil {
		tb.Fatal(err)
	}
	if err != nil {
		return nil
	}
	return node
}

// ready returns the status of a node's Ready condition, or "absent" if the node does not exist.
func (t *target) ready(tb testing.TB, name string) corev1.ConditionStatus {
	tb.Helper()
	node := t.node(tb, name)
	if node == nil {
		return "absent"
	}
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status
		}
	}
	return "missing"
}
