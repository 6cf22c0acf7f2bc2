package instance_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/fake"
	"github.com/millwright-dev/millwright/driver/status"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
	"github.com/millwright-dev/millwright/internal/reconcile/tasks"
)

// newDriver returns a driver whose first VM has the ID sim://1. All nodes are named node-1.
func newDriver() *fake.Driver {
	return fake.New(fake.Config{
		ProviderID:    func(_ *v1alpha1.Machine, number int) string { return fmt.Sprint("sim://", number) },
		NodeName:      func(*v1alpha1.Machine) string { return "node-1" },
		IgnoreContext: true,
	})
}

// callsOf returns the calls so far. The engine tries to initialize every new VM; calls of InitializeMachine
// that return Unimplemented are left out.
func callsOf(d *fake.Driver) []fake.Call {
	return slices.DeleteFunc(d.Calls(), func(call fake.Call) bool {
		return call.Method == fake.InitializeMachine && status.Is(call.Err, codes.Unimplemented)
	})
}

// made returns the methods that were called so far, and clears the calls.
func made(t *testing.T, d *fake.Driver) []fake.Method {
	t.Helper()
	checkOverlaps(t, d)
	var methods []fake.Method
	for _, call := range callsOf(d) {
		methods = append(methods, call.Method)
	}
	d.ForgetCalls()
	return methods
}

// checkOverlaps checks that calls for the same machine never ran concurrently.
func checkOverlaps(t *testing.T, d *fake.Driver) {
	t.Helper()
	for _, call := range d.Calls() {
		if call.Overlaps {
			t.Errorf("%s of %s while another call ran", call.Method, call.Machine)
		}
	}
}

// answering returns a GetMachineStatus hook that returns a VM and the given error.
func answering(err error) fake.Hook[driver.GetMachineStatusRequest, driver.GetMachineStatusResponse] {
	return fake.Always[driver.GetMachineStatusRequest](&driver.GetMachineStatusResponse{ProviderID: "sim://1", NodeName: "node-1"}, err)
}

// Hooks for GetMachineStatus.
var (
	found         = answering(nil)
	uninitialized = answering(status.Error(codes.Uninitialized, "not yet"))
)

// process is an engine with a runner for its tasks, as in a real process.
type process struct {
	*instance.Engine
	mu    sync.Mutex
	woken map[instance.Key]int
	// wake receives each wake-up.
	wake chan instance.Key
	stop func()
}

// start starts a process in a synctest bubble. It stops with the test at the latest.
func start(t *testing.T, d driver.Driver, changes ...func(*instance.Options)) *process {
	t.Helper()
	p := &process{woken: map[instance.Key]int{}, wake: make(chan instance.Key, 10_000)}
	runner := tasks.New(100)
	leading, lose := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = runner.Start(leading) // never fails
	}()
	p.stop = sync.OnceFunc(func() { lose(); <-ended })
	t.Cleanup(p.stop)
	opts := instance.Options{Run: runner.Go, Wake: func(key instance.Key) {
		p.mu.Lock()
		p.woken[key]++
		p.mu.Unlock()
		p.wake <- key
	}}
	for _, change := range changes {
		change(&opts)
	}
	p.Engine = instance.New(d, opts)
	return p
}

func (p *process) wakes(req instance.Request) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.woken[keyOf(req)]
}

func keyOf(req instance.Request) instance.Key {
	return instance.Key{Namespace: req.Machine.Namespace, Name: req.Machine.Name}
}

// ask repeats a call until it is no longer pending, and returns the result.
func ask[Result any](call func(instance.Request) Result, req instance.Request) Result {
	call(req)
	synctest.Wait()
	return call(req)
}

// is returns a result as the type that it must have.
func is[Result any](t *testing.T, got any) Result {
	t.Helper()
	result, ok := got.(Result)
	if !ok {
		t.Fatalf("result %T %+v, want %T", got, got, result)
	}
	return result
}

// kind returns the name of a result's type, such as Exists.
func kind(result any) string { return strings.TrimPrefix(fmt.Sprintf("%T", result), "instance.") }

// retry returns the time until the driver is called again after a result, or zero if it is not.
func retry(result any) time.Duration {
	switch r := result.(type) {
	case instance.Failed:
		return r.Retry
	case instance.Remains:
		return r.Retry
	}
	return 0
}

// ensure and remove are Ensure and Delete with a common type, for tests of both.
func (p *process) ensure(req instance.Request) any { return p.Ensure(req) }
func (p *process) remove(req instance.Request) any { return p.Delete(req) }

// request returns a request for a machine that is unknown to the provider.
func request(name string) instance.Request {
	return instance.Request{
		Machine:      &v1alpha1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: "machine", Generation: 1}},
		Class:        &v1alpha1.MachineClass{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "class", UID: "class", Generation: 1}},
		Secret:       &corev1.Secret{Data: map[string][]byte{"userData": []byte("hello")}},
		NodeExpected: true,
	}
}

// known returns a request for a machine with a stored provider ID.
func known(name string) instance.Request {
	req := request(name)
	req.Machine.Spec.ProviderID = "sim://1"
	req.Machine.Labels = map[string]string{v1alpha1.NodeLabelKey: "node-1"}
	return req
}

// within checks that a duration is at least base and at most 10% longer, which is the jitter.
func within(t *testing.T, what string, got, base time.Duration) {
	t.Helper()
	if got < base || got > base+base/10 {
		t.Errorf("%s: %v, want %v and at most 10%% more", what, got, base)
	}
}

func equalCalls(t *testing.T, d *fake.Driver, want ...fake.Method) {
	t.Helper()
	if got := made(t, d); !slices.Equal(got, want) {
		t.Errorf("calls %v, want %v", got, want)
	}
}
