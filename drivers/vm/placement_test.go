package vm_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	testingclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/drivers/vm"
)

// creation is a call of CreateMachine in progress.
type creation struct {
	*testDriver
	clock *testingclock.FakeClock
	ended chan error
}

func newCreation(t *testing.T) creation {
	clock := testingclock.NewFakeClock(time.Unix(1800000000, 0))
	c := creation{newTestDriver(t, vm.Options{Clock: clock}), clock, make(chan error, 1)}
	c.begin()
	return c
}

func (c creation) begin() {
	go func() {
		_, err := c.CreateMachine(c.t.Context(), &driver.CreateMachineRequest{Machine: machine("m", ""), MachineClass: c.class, Secret: c.secret})
		c.ended <- err
	}()
}

// settling waits until the creation measures, or no longer measures, Options.Settle.
func (c creation) settling(want bool) {
	c.t.Helper()
	eventually(c.t, func() bool { return c.clock.HasWaiters() == want })
}

func TestCreate_FailsWithoutCapacity(t *testing.T) {
	c := newCreation(t)
	c.setCondition(c.awaitVM(), unschedulable)
	c.settling(true)
	c.clock.Step(vm.DefaultSettle)
	err := <-c.ended
	wantCode(t, err, codes.ResourceExhausted)
	if !strings.Contains(err.Error(), unschedulable.Message) {
		t.Errorf("%q does not contain the message of the scheduler", err)
	}
	if len(c.vms()) != 0 || len(c.secrets()) != 0 {
		t.Errorf("%d VMs and %d Secrets still exist", len(c.vms()), len(c.secrets()))
	}
	_, err = c.status("m", "")
	wantCode(t, err, codes.NotFound)
}

// A host that has capacity before Options.Settle expires is used.
func TestCreate_UsesCapacityBeforeSettle(t *testing.T) {
	c := newCreation(t)
	v := c.awaitVM()
	c.setCondition(v, unschedulable)
	c.settling(true)
	c.clock.Step(vm.DefaultSettle - 1)
	c.setCondition(c.theVM(), metav1.Condition{Type: unschedulable.Type, Status: metav1.ConditionFalse, Reason: "Retrying"})
	c.settling(false)
	c.setCondition(c.theVM(), unschedulable)
	c.settling(true)
	c.clock.Step(vm.DefaultSettle - 1)
	c.setCondition(c.theVM(), hasHost)
	wantCode(t, <-c.ended, codes.OK)
	if got := c.theVM(); got.UID != v.UID || !got.DeletionTimestamp.IsZero() {
		t.Error("the VM was deleted")
	}
}

// A VM that has run is not deleted when no host has capacity for its next Pod.
func TestVM_IsKeptWithoutCapacityAfterItRan(t *testing.T) {
	c := newCreation(t)
	v := c.awaitVM()
	c.changeStatus(v, func(s *vmv1alpha1.VirtualMachineStatus) {
		s.ImagePrepared = true
		unschedulable := unschedulable
		unschedulable.LastTransitionTime = metav1.Now()
		s.Conditions = append(s.Conditions, unschedulable)
	})
	wantCode(t, <-c.ended, codes.OK)
}

// A VM that gets a host just before its deletion stays.
func TestVM_IsKeptIfHostIsFoundBeforeDeletion(t *testing.T) {
	clock := testingclock.NewFakeClock(time.Unix(1800000000, 0))
	w := newTestDriver(t, vm.Options{})
	late := &lastMoment{WithWatch: w.cluster, before: func() { w.setCondition(w.theVM(), hasHost) }}
	c := creation{w.with(vm.Options{Client: late, Clock: clock}), clock, make(chan error, 1)}
	c.begin()
	c.setCondition(c.awaitVM(), unschedulable)
	c.settling(true)
	c.clock.Step(vm.DefaultSettle)
	wantCode(t, <-c.ended, codes.OK)
	if v := c.theVM(); late.calls.Load() != 1 || !v.DeletionTimestamp.IsZero() {
		t.Errorf("got %d attempts to delete the VM, want one failed attempt", late.calls.Load())
	}
}

// lastMoment calls a function just before the first deletion.
type lastMoment struct {
	client.WithWatch
	calls  atomic.Int32
	before func()
}

func (l *lastMoment) Delete(ctx context.Context, obj client.Object, opts ...client.DeleteOption) error {
	if l.calls.Add(1) == 1 {
		l.before()
	}
	return l.WithWatch.Delete(ctx, obj, opts...)
}

func TestCreate_FailsIfVMIsDeleted(t *testing.T) {
	c := newCreation(t)
	c.must(c.admin.Delete(t.Context(), c.awaitVM()))
	wantCode(t, <-c.ended, codes.Aborted)
}

// Without a VM controller, a creation fails after Options.Timeout, and its VM stays.
func TestCreate_FailsWithoutVMController(t *testing.T) {
	w := newTestDriver(t, vm.Options{Timeout: 300 * time.Millisecond})
	eventually(t, func() bool { // on a slow machine, the timeout may expire before the VM exists
		_, err := w.create(t.Context(), "m")
		wantCode(t, err, codes.DeadlineExceeded)
		return len(w.vms()) == 1
	})
	id := "millwright:///" + w.Namespace + "/" + w.theVM().Spec.UUID
	found, err := w.status("m", "")
	if wantCode(t, err, codes.OK); err == nil && found.ProviderID != id {
		t.Errorf("got ID %q in the status, want %q", found.ProviderID, id)
	}
}

// Closed watches are restarted.
func TestWatch_IsRestarted(t *testing.T) {
	w := newTestDriver(t, vm.Options{})
	ending := &endingWatches{WithWatch: w.cluster}
	c := creation{w.with(vm.Options{Client: ending, Installation: "test"}), nil, make(chan error, 1)}
	c.begin()
	v := c.awaitVM()
	eventually(t, func() bool { return ending.number.Load() == 1 })
	c.setCondition(v, hasHost)
	wantCode(t, <-c.ended, codes.OK)
}

// endingWatches closes the first watch immediately.
type endingWatches struct {
	client.WithWatch
	number atomic.Int32
}

func (e *endingWatches) Watch(ctx context.Context, list client.ObjectList, opts ...client.ListOption) (watch.Interface, error) {
	changes, err := e.WithWatch.Watch(ctx, list, opts...)
	if err == nil && e.number.Add(1) == 1 {
		changes.Stop()
	}
	return changes, err
}
