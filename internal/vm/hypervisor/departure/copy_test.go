package departure

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/bulk"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/controller"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/handover"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/negotiation"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/qemu"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// copier is a machine whose copy behaves as a test specifies. QEMU never connects to its sockets.
type copier struct {
	idle
	send   func(ctx context.Context, progress func(qemu.Progress)) error
	finish func(ctx context.Context) error
}

func (c *copier) Listen(qemu.Socket) (net.Listener, error) { return bufconn.Listen(1), nil }
func (c *copier) Send(ctx context.Context, _ qemu.Destination, progress func(qemu.Progress)) error {
	return c.send(ctx, progress)
}
func (c *copier) Finish(ctx context.Context, _ qemu.Destination) error { return c.finish(ctx) }

func untilCanceled(ctx context.Context) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

func TestDeparture_CopyFailsWithoutProgress(t *testing.T) {
	sent := func(context.Context, func(qemu.Progress)) error { return nil }
	for name, test := range map[string]struct {
		machine copier
		stopped bool // whether the guest was already stopped
		after   time.Duration
		cause   error
	}{
		"no progress": {
			machine: copier{send: func(ctx context.Context, _ func(qemu.Progress)) error { return untilCanceled(ctx) }},
			after:   15 * time.Second, cause: errStalled,
		},
		"unchanged progress": {
			machine: copier{send: func(ctx context.Context, progress func(qemu.Progress)) error {
				for range 2 {
					time.Sleep(10 * time.Second)
					progress(qemu.Progress{Done: 1, Total: 2})
				}
				return untilCanceled(ctx)
			}},
			after: 25 * time.Second, cause: errStalled,
		},
		"the rest of the copy takes too long": {
			machine: copier{send: sent, finish: untilCanceled},
			stopped: true, after: 30 * time.Second, cause: errTooLong,
		},
		"the memory was not sent": {
			machine: copier{send: sent, finish: func(context.Context) error { return nil }},
			stopped: true, after: 30 * time.Second, cause: bulk.ErrNotSent,
		},
		"QEMU fails": {
			machine: copier{send: func(context.Context, func(qemu.Progress)) error { return net.ErrClosed }}, cause: net.ErrClosed,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d, _ := newDeparture(t, &script{})
				var last controller.Migration
				d.Machine, d.Report = &test.machine, func(m controller.Migration) { last = m }
				d.attempt.agreed = &vmpb.MigrationProtocol_QemuNBD{NegotiatedEndpoint: "tcp:target:1"}
				reach(d, handover.Ordered, handover.TargetFound, handover.Agreed)
				begun := time.Now()
				d.begin(d.copy)
				result := <-d.Results()
				if test.stopped {
					if result.event != handover.GuestStopped {
						t.Errorf("first event = %q", result.event)
					}
					result = <-d.Results()
				}
				if took := time.Since(begun); result.event != handover.Failed || took != test.after {
					t.Errorf("event = %q after %v, want %q after %v", result.event, took, handover.Failed, test.after)
				}
				if last.Phase != vmpb.ReportStateRequest_Migration_PHASE_FAILED || !strings.Contains(last.Message, test.cause.Error()) {
					t.Errorf("reported %v %q, want %v", last.Phase, last.Message, test.cause)
				}
			})
		})
	}
}

// withoutSocket is a machine that cannot open one of its sockets.
type withoutSocket struct {
	idle
	missing qemu.Socket
	opened  []*bufconn.Listener
}

func (w *withoutSocket) Listen(socket qemu.Socket) (net.Listener, error) {
	if socket == w.missing {
		return nil, net.ErrClosed
	}
	w.opened = append(w.opened, bufconn.Listen(1))
	return w.opened[len(w.opened)-1], nil
}

func TestDeparture_CopyFailsWithoutSocket(t *testing.T) {
	for name, socket := range map[string]qemu.Socket{"memory": qemu.MemorySocket, "disks": qemu.DiskSocket} {
		t.Run(name, func(t *testing.T) {
			d, _ := newDeparture(t, &script{})
			machine := &withoutSocket{missing: socket}
			var last controller.Migration
			d.Machine, d.Report = machine, func(m controller.Migration) { last = m }
			d.attempt.agreed = &vmpb.MigrationProtocol_QemuNBD{NegotiatedEndpoint: "tcp:target:1", ConstraintWithBlockmigration: true}
			reach(d, handover.Ordered, handover.TargetFound, handover.Agreed)
			d.begin(d.copy)
			if result := <-d.Results(); result.event != handover.Failed {
				t.Errorf("event %q, want %q", result.event, handover.Failed)
			}
			if last.Phase != vmpb.ReportStateRequest_Migration_PHASE_FAILED || !strings.Contains(last.Message, net.ErrClosed.Error()) {
				t.Errorf("reported %v %q, want %v", last.Phase, last.Message, net.ErrClosed)
			}
			for _, listener := range machine.opened {
				if _, err := listener.Accept(); err == nil {
					t.Error("a socket is still open")
				}
			}
		})
	}
}

// unreachable is a target that cannot be reached.
type unreachable struct{ Siblings }

func (unreachable) Dial(string, string) (*grpc.ClientConn, error) {
	return nil, errors.New("no certificate")
}

func TestDeparture_NegotiationFails(t *testing.T) {
	for name, describe := range map[string]error{"no connection": nil, "no description": errors.New("no disk")} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d, _ := newDeparture(t, &script{})
				d.Siblings, d.Describe = unreachable{}, func() (negotiation.Machine, error) { return sharedDisk, describe }
				reach(d, handover.Ordered, handover.TargetFound)
				d.begin(d.negotiate)
				if result := <-d.Results(); result.event != handover.Failed || d.attempt.agreed != nil {
					t.Errorf("event = %q, agreed protocol = %v", result.event, d.attempt.agreed)
				}
			})
		})
	}
}

func TestDeparture_DisksAreReleasedBeforeCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := newDeparture(t, &script{})
		begun, released := time.Now(), time.Duration(-1)
		d.ReleaseDisks = func() error { released = time.Since(begun); return errors.New("still locked") }
		d.attempt.sender = bulk.NewSender(nil) // its Commit waits for memory that is never sent
		reach(d, handover.Ordered, handover.TargetFound, handover.Agreed, handover.GuestStopped)
		wantAction(t, d.Handle(handover.Copied), handover.Commit)
		if result := <-d.Results(); result.event != handover.TimeOver || released != 0 {
			t.Errorf("event = %q, released after %v", result.event, released)
		}
	})
}

// Earlier failures delay neither a new request to move nor the request for the authority.
func TestDeparture_RequestsResetBackOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := newDeparture(t, &script{
			ensure: func(context.Context) (*vmpb.EnsureMigrationTargetResponse, error) {
				return nil, errors.New("no target")
			},
			switchover: func(_, _ *vmpb.HypervisorID) error {
				return status.Error(codes.Unavailable, "")
			},
		})
		wantSoon := func(what string) {
			t.Helper()
			begun := time.Now()
			<-d.Results()
			if took := time.Since(begun); took != 0 {
				t.Errorf("%s after %v", what, took)
			}
		}
		d.pause = time.Minute
		d.Handle(handover.Ordered)
		wantSoon("asked for a target")
		reach(d, handover.TargetFound, handover.Agreed, handover.GuestStopped)
		d.pause, d.attempt.sender = time.Minute, bulk.NewSender(nil)
		d.Handle(handover.Copied)
		wantAction(t, d.Take(<-d.Results()), handover.Reclaim)
		wantSoon("asked for the authority")
	})
}

func TestDeparture_ReclaimIsRetriedWithoutNextRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := newDeparture(t, &script{switchover: func(_, _ *vmpb.HypervisorID) error { return nil }})
		next, attempts := d.NextRun, 0
		d.NextRun = func() (*vmpb.HypervisorID, error) {
			if attempts++; attempts == 1 {
				return nil, errors.New("the disk is full")
			}
			return next()
		}
		d.attempt.sender = bulk.NewSender(nil)
		reach(d, handover.Ordered, handover.TargetFound, handover.Agreed, handover.GuestStopped)
		d.Handle(handover.Copied)
		wantAction(t, d.Take(<-d.Results()), handover.Reclaim)
		wantAction(t, d.Take(<-d.Results()), handover.Reclaim)
		wantAction(t, d.Take(<-d.Results()), handover.OpenLease)
	})
}
