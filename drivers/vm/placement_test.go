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

// creation is a call to CreateMachine that is under way.
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

// settling waits until the creation measures, or does not measure, Options.Settle.
func (c creation) settling(want bool) {
	c.t.Helper()
	eventually(c.t, func() bool { return c.clock.HasWaiters() == want })
}

func TestNoRoom(t *testing.T) {
	c := newCreation(t)
	c.say(c.awaitVM(), noRoom)
	c.settling(true)
	c.clock.Step(vm.DefaultSettle)
	err := <-c.ended
	wantCode(t, err, codes.ResourceExhausted)
	if !strings.Contains(err.Error(), noRoom.Message) {
		t.Errorf("%q lacks the message of the scheduler", err)
	}
	if len(c.vms()) != 0 || len(c.secrets()) != 0 {
		t.Errorf("%d VMs and %d secrets are left", len(c.vms()), len(c.secrets()))
	}
	_, err = c.status("m", "")
	wantCode(t, err, codes.NotFound)
}

// A host that has room before Options.Settle is used.
func TestRoomAfterAll(t *testing.T) {
	c := newCreation(t)
	v := c.awaitVM()
	c.say(v, noRoom)
	c.settling(true)
	c.clock.Step(vm.DefaultSettle - 1)
	c.say(c.theVM(), metav1.Condition{Type: noRoom.Type, Status: metav1.ConditionFalse, Reason: "Retrying"})
	c.settling(false)
	c.say(c.theVM(), noRoom)
	c.settling(true)
	c.clock.Step(vm.DefaultSettle - 1)
	c.say(c.theVM(), hasHost)
	wantCode(t, <-c.ended, codes.OK)
	if got := c.theVM(); got.UID != v.UID || !got.DeletionTimestamp.IsZero() {
		t.Error("the VM was deleted")
	}
}

// A VM that has run is not deleted because there is no room for its next Pod.
func TestNoRoomForAVMThatRan(t *testing.T) {
	c := newCreation(t)
	v := c.awaitVM()
	c.changeStatus(v, func(s *vmv1alpha1.VirtualMachineStatus) {
		s.ImagePrepared = true
		noRoom := noRoom
		noRoom.LastTransitionTime = metav1.Now()
		s.Conditions = append(s.Conditions, noRoom)
	})
	wantCode(t, <-c.ended, codes.OK)
}

// A VM that gets a host just before its deletion stays.
func TestRoomAtTheLastMoment(t *testing.T) {
	clock := testingclock.NewFakeClock(time.Unix(1800000000, 0))
	w := newTestDriver(t, vm.Options{})
	late := &lastMoment{WithWatch: w.cluster, before: func() { w.say(w.theVM(), hasHost) }}
	c := creation{w.with(vm.Options{Client: late, Clock: clock}), clock, make(chan error, 1)}
	c.begin()
	c.say(c.awaitVM(), noRoom)
	c.settling(true)
	c.clock.Step(vm.DefaultSettle)
	wantCode(t, <-c.ended, codes.OK)
	if v := c.theVM(); late.calls.Load() != 1 || !v.DeletionTimestamp.IsZero() {
		t.Errorf("%d attempts to delete the VM, want one without success", late.calls.Load())
	}
}

// lastMoment calls a function just before the first delete.
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

func TestDeletedWhileCreated(t *testing.T) {
	c := newCreation(t)
	c.must(c.admin.Delete(t.Context(), c.awaitVM()))
	wantCode(t, <-c.ended, codes.Aborted)
}

// Without a VM controller a creation ends after Options.Timeout, and its VM stays.
func TestNoVMController(t *testing.T) {
	w := newTestDriver(t, vm.Options{Timeout: 300 * time.Millisecond})
	eventually(t, func() bool { // on a slow machine the time may end before there is a VM
		_, err := w.create(t.Context(), "m")
		wantCode(t, err, codes.DeadlineExceeded)
		return len(w.vms()) == 1
	})
	id := "millwright:///" + w.Namespace + "/" + w.theVM().Spec.UUID
	found, err := w.status("m", "")
	if wantCode(t, err, codes.OK); err == nil && found.ProviderID != id {
		t.Errorf("status has ID %q, want %q", found.ProviderID, id)
	}
}

// Watches that end are started again.
func TestWatchesEnd(t *testing.T) {
	w := newTestDriver(t, vm.Options{})
	ending := &endingWatches{WithWatch: w.cluster}
	c := creation{w.with(vm.Options{Client: ending, Installation: "test"}), nil, make(chan error, 1)}
	c.begin()
	v := c.awaitVM()
	eventually(t, func() bool { return ending.number.Load() == 1 })
	c.say(v, hasHost)
	wantCode(t, <-c.ended, codes.OK)
}

// endingWatches ends the first watch at once.
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
