package departure

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/bulk"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/controller"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/handover"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// script is a controller whose responses a test defines.
type script struct {
	vmpb.VMControllerClient
	ensure     func(ctx context.Context) (*vmpb.EnsureMigrationTargetResponse, error)
	switchover func(us, them *vmpb.HypervisorID) error
	// asked is the last request for a target.
	asked *vmpb.EnsureMigrationTargetRequest
}

func (s *script) EnsureMigrationTarget(
	ctx context.Context, request *vmpb.EnsureMigrationTargetRequest, _ ...grpc.CallOption,
) (*vmpb.EnsureMigrationTargetResponse, error) {
	s.asked = request
	return s.ensure(ctx)
}

func (s *script) MigrationSwitchover(
	_ context.Context, request *vmpb.MigrationSwitchoverRequest, _ ...grpc.CallOption,
) (*vmpb.MigrationSwitchoverResponse, error) {
	return &vmpb.MigrationSwitchoverResponse{}, s.switchover(request.GetUs(), request.GetThem())
}

// idle is a machine whose migration is canceled immediately.
type idle struct {
	Machine
	abandoned int
}

func (i *idle) Abandon(context.Context) error { i.abandoned++; return nil }

func newDeparture(t *testing.T, controller_ *script) (*Departure, *idle) {
	t.Helper()
	machine, run := &idle{}, uint64(1)
	d := New(Options{
		Us: &vmpb.HypervisorID{RunId: run}, Controller: controller_, Machine: machine,
		NextRun: func() (*vmpb.HypervisorID, error) { run++; return &vmpb.HypervisorID{RunId: run}, nil },
		Report:  func(controller.Migration) {}, Log: slog.New(slog.DiscardHandler),
	})
	t.Cleanup(d.Close)
	return d, machine
}

func reach(d *Departure, events ...handover.SourceEvent) {
	for _, event := range events {
		d.source.Take(event)
	}
}

func wantAction(t *testing.T, got, want handover.SourceAction) {
	t.Helper()
	if got != want {
		t.Errorf("action = %q, want %q", got, want)
	}
}

// If the controller does not name a target, the guest shuts down or the request is repeated.
func TestDeparture_ResponseWithoutTarget(t *testing.T) {
	live := vmpb.EnsureMigrationTargetResponse_ACTION_LIVE_MIGRATE
	for name, test := range map[string]struct {
		response *vmpb.EnsureMigrationTargetResponse
		err      error
		want     handover.SourceAction
	}{
		"shut down":       {&vmpb.EnsureMigrationTargetResponse{Action: vmpb.EnsureMigrationTargetResponse_ACTION_SOFT_SHUTDOWN}, nil, handover.ShutDown},
		"not implemented": {nil, status.Error(codes.Unimplemented, ""), handover.ShutDown},
		"no Pod":          {&vmpb.EnsureMigrationTargetResponse{Action: live, TargetEndpoint: "a:1"}, nil, handover.ShutDown},
		"no endpoint":     {&vmpb.EnsureMigrationTargetResponse{Action: live, TargetPod: "a"}, nil, handover.Ask},
		"unknown action":  {&vmpb.EnsureMigrationTargetResponse{}, nil, handover.Ask},
		"away":            {nil, status.Error(codes.Unavailable, ""), handover.Ask},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d, _ := newDeparture(t, &script{ensure: func(context.Context) (*vmpb.EnsureMigrationTargetResponse, error) {
					return test.response, test.err
				}})
				wantAction(t, d.Handle(handover.Ordered), handover.Ask)
				wantAction(t, d.Take(<-d.Results()), test.want)
				if d.Unanswered() != (test.want == handover.Ask) || d.Idle() == (test.want == handover.Ask) {
					t.Errorf("Unanswered() = %t, Idle() = %t", d.Unanswered(), d.Idle())
				}
			})
		})
	}
}

// TestDeparture_ReportsTimeSinceSIGTERM checks that the request contains how long ago the process was asked to
// terminate, if it was, and that the result contains the time after which the host may kill it.
func TestDeparture_ReportsTimeSinceSIGTERM(t *testing.T) {
	for name, test := range map[string]struct {
		leave bool
		want  *durationpb.Duration
	}{
		"on request":    {false, nil},
		"after SIGTERM": {true, durationpb.New(7 * time.Second)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				controller := &script{ensure: func(context.Context) (*vmpb.EnsureMigrationTargetResponse, error) {
					return &vmpb.EnsureMigrationTargetResponse{
						Action: vmpb.EnsureMigrationTargetResponse_ACTION_LIVE_MIGRATE, TargetEndpoint: "a:1", TargetPod: "a", Grace: durationpb.New(time.Minute),
					}, nil
				}}
				d, _ := newDeparture(t, controller)
				if test.leave {
					d.Leave(time.Now(), time.Now().Add(time.Hour))
					time.Sleep(7 * time.Second)
				}
				d.Handle(handover.Ordered)
				if result := <-d.Results(); result.event != handover.TargetFound || result.Grace != time.Minute {
					t.Errorf("the result is %+v", result)
				}
				if got := controller.asked.GetStopping(); !proto.Equal(got, test.want) {
					t.Errorf("the request has %v, want %v", got, test.want)
				}
			})
		})
	}
}

// The controller does not get too many requests while it is unavailable.
func TestBackoff_Increases(t *testing.T) {
	for name, test := range map[string]struct {
		takes time.Duration
		want  []time.Duration // in seconds
	}{
		"unavailable controller":             {0, []time.Duration{0, 1, 3, 7, 15, 31, 61}},
		"controller that waits for a target": {30 * time.Second, []time.Duration{0, 30, 60, 90, 120, 150, 180}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var at []time.Duration
				begun := time.Now()
				d, _ := newDeparture(t, &script{ensure: func(context.Context) (*vmpb.EnsureMigrationTargetResponse, error) {
					at = append(at, time.Since(begun)/time.Second)
					time.Sleep(test.takes)
					return nil, errors.New("no target yet")
				}})
				d.Handle(handover.Ordered)
				for range 7 {
					d.Take(<-d.Results())
				}
				if !slices.Equal(at, test.want) {
					t.Errorf("asked after %v, want %v", at, test.want)
				}
			})
		})
	}
}

// Canceling a request to move also cancels the request for a target, whose response is ignored.
func TestDeparture_CancelStopsTargetRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan struct{})
		d, _ := newDeparture(t, &script{ensure: func(ctx context.Context) (*vmpb.EnsureMigrationTargetResponse, error) {
			<-ctx.Done()
			close(ended)
			return nil, ctx.Err()
		}})
		d.Handle(handover.Ordered)
		synctest.Wait()
		wantAction(t, d.Handle(handover.Cancelled), handover.Nothing)
		<-ended
		if !d.Idle() || d.ControlsQEMU() {
			t.Error("Idle() = false, want true")
		}
		wantAction(t, d.Take(Result{number: 1, event: handover.TargetFound}), handover.Nothing)
	})
}

// While a copy is being canceled, no one else controls QEMU.
func TestDeparture_ControlsQEMUUntilCanceled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, machine := newDeparture(t, &script{})
		reach(d, handover.Ordered, handover.TargetFound, handover.Agreed)
		if !d.ControlsQEMU() || !d.MayRun() {
			t.Error("ControlsQEMU or MayRun is false during a copy")
		}
		wantAction(t, d.Handle(handover.Cancelled), handover.Abandon)
		if !d.ControlsQEMU() || d.Idle() {
			t.Error("ControlsQEMU is false before the copy was canceled")
		}
		wantAction(t, d.Take(<-d.Results()), handover.Nothing)
		if d.ControlsQEMU() || !d.Idle() || machine.abandoned != 1 {
			t.Errorf("still migrating after %d calls of Abandon", machine.abandoned)
		}
	})
}

// The authority is requested under a single new run until there is a response. The guest runs once it has a lease.
func TestDeparture_ReclaimsAuthority(t *testing.T) {
	for name, test := range map[string]struct {
		last error
		want handover.SourceAction
		run  uint64
	}{
		"granted": {nil, handover.OpenLease, 2},
		"denied":  {status.Error(codes.FailedPrecondition, ""), handover.Kill, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				asked := 0
				d, _ := newDeparture(t, &script{switchover: func(us, them *vmpb.HypervisorID) error {
					if us.GetRunId() != 2 || them.GetRunId() != 1 {
						t.Errorf("switchover from run %d to %d", them.GetRunId(), us.GetRunId())
					}
					if asked++; asked < 3 {
						return status.Error(codes.Unavailable, "")
					}
					return test.last
				}})
				reach(d, handover.Ordered, handover.TargetFound, handover.Agreed, handover.GuestStopped)
				d.attempt.sender = bulk.NewSender(nil)
				begun := time.Now()
				d.act(handover.Stopped, d.source.Take(handover.Copied))
				wantAction(t, d.Handle(handover.Cancelled), handover.Nothing) // too late
				wantAction(t, d.Take(<-d.Results()), handover.Reclaim)
				if passed := time.Since(begun); passed != 40*time.Second {
					t.Errorf("asked after %v", passed)
				}
				wantAction(t, d.Handle(handover.Terminated), handover.Nothing) // concerns the old run
				wantAction(t, d.Take(<-d.Results()), handover.Reclaim)
				wantAction(t, d.Take(<-d.Results()), handover.Reclaim)
				wantAction(t, d.Take(<-d.Results()), test.want)
				if d.Run().GetRunId() != test.run || d.MayRun() || !d.ControlsQEMU() || d.AwaitsLease() != (test.run == 2) {
					t.Errorf("run = %d, MayRun() = %t", d.Run().GetRunId(), d.MayRun())
				}
				if test.run == 1 {
					return
				}
				wantAction(t, d.Handle(handover.Leased), handover.Resume)
				if !d.MayRun() || d.ControlsQEMU() {
					t.Error("MayRun() = false with a lease")
				}
			})
		})
	}
}

// A request that changes while a migration is being canceled does not block QEMU forever.
func TestDeparture_CancelingDoesNotBlockQEMU(t *testing.T) {
	for name, test := range map[string]struct{ first, second handover.SourceEvent }{
		"failed and then cancelled":        {handover.Failed, handover.Cancelled},
		"cancelled and then ordered again": {handover.Cancelled, handover.Ordered},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d, machine := newDeparture(t, &script{ensure: func(context.Context) (*vmpb.EnsureMigrationTargetResponse, error) {
					return &vmpb.EnsureMigrationTargetResponse{Action: vmpb.EnsureMigrationTargetResponse_ACTION_SOFT_SHUTDOWN}, nil
				}})
				reach(d, handover.Ordered, handover.TargetFound, handover.Agreed)
				d.Handle(test.first)
				d.Handle(test.second)
				for late := time.After(time.Minute); !d.Idle(); {
					select {
					case result := <-d.Results():
						d.Take(result)
					case <-late:
						t.Fatal("the migration controls QEMU forever")
					}
				}
				if machine.abandoned == 0 {
					t.Error("QEMU's migration was not canceled")
				}
			})
		})
	}
}

// A controller counts as unreachable only after a request for a target got no response, and only while a target is
// requested.
func TestDeparture_UnansweredWhileAsking(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := newDeparture(t, &script{ensure: func(context.Context) (*vmpb.EnsureMigrationTargetResponse, error) {
			return nil, status.Error(codes.Unavailable, "")
		}})
		want := func(when string, want bool) {
			t.Helper()
			if d.Unanswered() != want {
				t.Errorf("%s: Unanswered() = %t", when, !want)
			}
		}
		d.Handle(handover.Ordered)
		want("before a response", false)
		d.Take(<-d.Results())
		want("without a response", true)
		d.Handle(handover.Cancelled)
		want("canceled", false)
	})
}

func TestDeparture_ResultOfEarlierOperationIsIgnored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := newDeparture(t, &script{ensure: func(ctx context.Context) (*vmpb.EnsureMigrationTargetResponse, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}})
		d.Handle(handover.Ordered)
		stale := Result{number: d.number, event: handover.TargetFound}
		d.Handle(handover.Cancelled)
		d.Handle(handover.Ordered)
		wantAction(t, d.Take(stale), handover.Nothing)
		if d.source.State() != handover.Asking {
			t.Errorf("source state = %s", d.source.State())
		}
	})
}
