package instance_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
	"github.com/millwright-dev/millwright/internal/reconcile/tasks"
)

// scripted is a driver that answers as its fields say. What is nil answers as if the
// provider were empty and obliging.
type scripted struct {
	find       func(context.Context, *driver.GetMachineStatusRequest) (*driver.GetMachineStatusResponse, error)
	create     func(context.Context, *driver.CreateMachineRequest) (*driver.CreateMachineResponse, error)
	remove     func(context.Context, *driver.DeleteMachineRequest) (*driver.DeleteMachineResponse, error)
	initialize func(context.Context, *driver.InitializeMachineRequest) (*driver.InitializeMachineResponse, error)

	mu    sync.Mutex
	calls []string
	// times of the calls, in the same order.
	times []time.Time
	// running calls by machine, and what must not have happened.
	running map[string]int
	overlap string
}

var noVM = status.Error(codes.NotFound, "no VM")

func (d *scripted) enter(name string, machine *v1alpha1.Machine) func() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.running == nil {
		d.running = map[string]int{}
	}
	d.calls = append(d.calls, name)
	d.times = append(d.times, time.Now())
	if d.running[machine.Name]++; d.running[machine.Name] > 1 {
		d.overlap = fmt.Sprintf("%s of %s while another call ran", name, machine.Name)
	}
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.running[machine.Name]--
	}
}

// made returns the calls so far, and forgets them.
func (d *scripted) made() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	calls := d.calls
	d.calls, d.times = nil, nil
	return calls
}

func (d *scripted) GetMachineStatus(ctx context.Context, req *driver.GetMachineStatusRequest) (*driver.GetMachineStatusResponse, error) {
	defer d.enter("Status", req.Machine)()
	if d.find == nil {
		return nil, noVM
	}
	return d.find(ctx, req)
}

func (d *scripted) CreateMachine(ctx context.Context, req *driver.CreateMachineRequest) (*driver.CreateMachineResponse, error) {
	defer d.enter("Create", req.Machine)()
	if d.create == nil {
		return &driver.CreateMachineResponse{ProviderID: "sim://1", NodeName: "node-1"}, nil
	}
	return d.create(ctx, req)
}

func (d *scripted) DeleteMachine(ctx context.Context, req *driver.DeleteMachineRequest) (*driver.DeleteMachineResponse, error) {
	defer d.enter("Delete", req.Machine)()
	if d.remove == nil {
		return &driver.DeleteMachineResponse{}, nil
	}
	return d.remove(ctx, req)
}

func (d *scripted) InitializeMachine(ctx context.Context, req *driver.InitializeMachineRequest) (*driver.InitializeMachineResponse, error) {
	if d.initialize == nil {
		return nil, status.Error(codes.Unimplemented, "no VM needs it")
	}
	defer d.enter("Initialize", req.Machine)()
	return d.initialize(ctx, req)
}

func (d *scripted) ListMachines(context.Context, *driver.ListMachinesRequest) (*driver.ListMachinesResponse, error) {
	return nil, status.Error(codes.Unimplemented, "not part of the engine")
}

// plain is a driver without any optional ability.
type plain struct{ driver.Driver }

// found answers that the VM exists.
func found(context.Context, *driver.GetMachineStatusRequest) (*driver.GetMachineStatusResponse, error) {
	return &driver.GetMachineStatusResponse{ProviderID: "sim://1", NodeName: "node-1"}, nil
}

// process is an engine with the runner of its tasks, as one process has them.
type process struct {
	*instance.Engine
	mu    sync.Mutex
	woken map[instance.Key]int
	// wake is told of each time that somebody is woken.
	wake chan instance.Key
	stop func()
}

// start starts a process in a synctest bubble. It ends with the test at the latest.
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

// ask asks until no call runs any more, and returns the answer.
func ask(question func(instance.Request) instance.Answer, req instance.Request) instance.Answer {
	question(req)
	synctest.Wait()
	return question(req)
}

// request is for a machine that the provider has not heard of.
func request(name string) instance.Request {
	return instance.Request{
		Machine:      &v1alpha1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: "machine", Generation: 1}},
		Class:        &v1alpha1.MachineClass{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "class", UID: "class", Generation: 1}},
		Secret:       &corev1.Secret{Data: map[string][]byte{"userData": []byte("hello")}},
		NodeExpected: true,
	}
}

// known is for a machine whose provider ID is stored.
func known(name string) instance.Request {
	req := request(name)
	req.Machine.Spec.ProviderID = "sim://1"
	req.Machine.Labels = map[string]string{v1alpha1.NodeLabelKey: "node-1"}
	return req
}

// within checks that a duration lies between base and a tenth more, which is jitter.
func within(t *testing.T, what string, got, base time.Duration) {
	t.Helper()
	if got < base || got > base+base/10 {
		t.Errorf("%s: %v, want %v and at most a tenth more", what, got, base)
	}
}

func equalCalls(t *testing.T, d *scripted, want ...string) {
	t.Helper()
	if got := d.made(); !slices.Equal(got, want) {
		t.Errorf("calls %v, want %v", got, want)
	}
}
