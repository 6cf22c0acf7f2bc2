package hypervisor_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/disk"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/qemu"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

func TestGuest_RunsOnceAuthorized(t *testing.T) {
	withFixture(t, func(w *fixture) {
		w.controller.Respond(nil)
		p := w.start()
		pass(5 * time.Second)
		if started := w.machines.Started(); len(started) != 0 {
			t.Fatal("started the machine before the controller's response")
		}
		w.controller.Respond(leaseOK())
		pass(0)
		if state := w.machine().Status(); state != running {
			t.Errorf("state = %s", state)
		}
		w.machine().ShutDown()
		p.wantEnd(vmpb.EndGuestShutdown)
		if diff := cmp.Diff([]string{"STATE_WAITING", "STATE_RUNNING"}, w.states()); diff != "" {
			t.Errorf("states (-want +got):\n%s", diff)
		}
	})
}

func TestHypervisor_TerminatedBeforeStart(t *testing.T) {
	withFixture(t, func(w *fixture) {
		w.controller.Respond(leaseTerminated())
		w.start().wantEnd(vmpb.EndTerminated)
		if len(w.machines.Started()) != 0 || w.disk() != "" {
			t.Error("started a machine or wrote an image")
		}
	})
}

func TestHypervisor_TerminationKillsGuest(t *testing.T) {
	for name, before := range map[string]func(*fixture, *process){
		"running":  func(*fixture, *process) {},
		"held":     func(w *fixture, _ *process) { w.controller.Respond(leasePaused()); pass(0) },
		"stopping": func(_ *fixture, p *process) { p.term(); pass(0) },
	} {
		t.Run(name, func(t *testing.T) {
			withFixture(t, func(w *fixture) {
				w.machines.IgnorePowerButton = true
				p := w.start()
				before(w, p)
				begin := time.Now()
				w.controller.Respond(leaseTerminated())
				p.wantEnd(vmpb.EndTerminated)
				if exit := w.machine().Exit(); exit.Reason != qemu.HostKilled {
					t.Errorf("exit = %s", exit)
				}
				if took := time.Since(begin); took > 2*time.Second {
					t.Errorf("terminated after %s", took)
				}
				lock, err := disk.Acquire(w.config.Paths.RootDisk)
				if err != nil {
					t.Fatalf("the disk is still locked: %v", err)
				}
				must(t, lock.Release())
			})
		})
	}
}

func TestHypervisor_ControllerUnavailableAtStart(t *testing.T) {
	withFixture(t, func(w *fixture) {
		w.preparing()
		w.controller.SetAway(true)
		p := w.start()
		pass(9 * time.Second)
		if len(w.machines.Started()) != 0 {
			t.Fatal("the hypervisor did not wait for the controller")
		}
		// Ten seconds for the authorization, and ten for the confirmation of the disk.
		pass(12 * time.Second)
		if state := w.machine().Status(); state != running {
			t.Errorf("state = %s", state)
		}
		w.controller.SetAway(false)
		pass(time.Minute)
		p.wantAlive()
		if diff := cmp.Diff([]string{"STATE_RUNNING"}, w.states()); diff != "" {
			t.Errorf("states (-want +got):\n%s", diff)
		}
		reports := w.controller.Reports()
		if !reports[len(reports)-1].GetImagePrepared() {
			t.Error("the controller did not receive the report that the disk is prepared")
		}
	})
}

// A hypervisor that cannot authenticate does not start its guest, reports that, and retries. If it still fails,
// its Pod reports the reason. An unreachable controller is a different case, which follows.
func TestHypervisor_NoCertificateIssued(t *testing.T) {
	for name, test := range map[string]struct {
		until  time.Duration
		starts bool
	}{
		"permanently": {time.Hour, false},
		"temporarily": {25 * time.Second, true},
	} {
		t.Run(name, func(t *testing.T) {
			withFixture(t, func(w *fixture) {
				w.controller.SetAway(true)
				begin := time.Now()
				w.config.IdentityError = func() error {
					if time.Since(begin) < test.until {
						return errors.New("no controller issues certificates")
					}
					return nil
				}
				p := w.start()
				pass(24 * time.Second)
				if len(w.machines.Started()) != 0 {
					t.Fatal("started the guest")
				}
				p.wantAlive()
				pass(40 * time.Second)
				if test.starts {
					if state := w.machine().Status(); state != running {
						t.Errorf("state = %s", state)
					}
					return
				}
				p.wantEnd(vmpb.EndNotAuthorized)
				if len(w.machines.Started()) != 0 {
					t.Error("started the guest")
				}
			})
		})
	}
}

func TestHypervisor_ControllerUnavailableForLong(t *testing.T) {
	withFixture(t, func(w *fixture) {
		p := w.start()
		w.controller.SetAway(true)
		pass(100 * time.Hour)
		p.wantAlive()
		if state := w.machine().Status(); state != running {
			t.Errorf("state = %s", state)
		}
		// A request that the controller makes as soon as it is available again is followed.
		w.controller.Respond(leaseTerminated())
		w.controller.SetAway(false)
		begin := time.Now()
		p.wantEnd(vmpb.EndTerminated)
		if took := time.Since(begin); took > 30*time.Second {
			t.Errorf("reached the controller after %s", took)
		}
	})
}

func TestLease_StreamErrorsDoNotStopGuest(t *testing.T) {
	for _, code := range []codes.Code{
		codes.InvalidArgument, codes.NotFound, codes.PermissionDenied, codes.FailedPrecondition,
		codes.Unauthenticated, codes.Unimplemented, codes.Internal, codes.Unavailable,
	} {
		t.Run(code.String(), func(t *testing.T) {
			withFixture(t, func(w *fixture) {
				w.controller.RefuseStreams(status.Error(code, "no"))
				p := w.start()
				pass(time.Hour)
				p.wantAlive()
				if state := w.machine().Status(); state != running {
					t.Errorf("state = %s", state)
				}
			})
		})
	}
}

func TestLease_ExactlyOneStreamIsOpen(t *testing.T) {
	withFixture(t, func(w *fixture) {
		p := w.start()
		for range 50 {
			w.controller.EndStreams()
			pass(15 * time.Second)
			if open, most := w.controller.Streams(); open != 1 || most != 1 {
				t.Fatalf("%d streams are open, maximum %d; want 1", open, most)
			}
		}
		p.wantAlive()
		runs := w.controller.Runs()
		if len(runs) != 51 {
			t.Errorf("opened %d streams, want 51", len(runs))
		}
		for _, run := range runs {
			if run.GetRunId() != runs[0].GetRunId() || run.GetPodName() != "web-1" ||
				run.GetVmName() != "web" || run.GetNamespace() != "default" {
				t.Errorf("stream of run %v, want %v", run, runs[0])
			}
		}
	})
}

// A controller that responds and closes each stream immediately does not get too many requests.
func TestLease_ClosedStreamsAreRetriedWithBackoff(t *testing.T) {
	withFixture(t, func(w *fixture) {
		w.controller.RefuseStreams(status.Error(codes.Unavailable, "starting"))
		p := w.start()
		pass(time.Hour)
		p.wantAlive()
		w.controller.RefuseStreams(nil)
		pass(15 * time.Second)
		if open, _ := w.controller.Streams(); open != 1 {
			t.Errorf("%d streams are open after the controller is available again", open)
		}
	})
}

func TestLease_UnknownStatusIsIgnored(t *testing.T) {
	withFixture(t, func(w *fixture) {
		p := w.start()
		for _, response := range []*vmpb.RunLeaseUpdate{{}, {Status: 77, Paused: true}} {
			w.controller.Respond(response)
			pass(time.Minute)
			p.wantAlive()
			if state := w.machine().Status(); state != running {
				t.Errorf("%v: state = %s", response, state)
			}
		}
	})
}

func TestGuest_PausedIsStopped(t *testing.T) {
	withFixture(t, func(w *fixture) {
		w.controller.Respond(leasePaused())
		p := w.start()
		if state := w.machine().Status(); state == running {
			t.Error("the guest runs, want it stopped from the beginning")
		}
		for range 2 {
			w.controller.Respond(leaseOK())
			pass(0)
			if state := w.machine().Status(); state != running {
				t.Errorf("after the pause: state = %s", state)
			}
			w.controller.Respond(leasePaused())
			pass(0)
			if state := w.machine().Status(); state != paused {
				t.Errorf("paused: state = %s", state)
			}
			// The guest stays stopped while the controller is unavailable.
			w.controller.SetAway(true)
			pass(time.Hour)
			if state := w.machine().Status(); state != paused {
				t.Errorf("paused without a controller: state = %s", state)
			}
			w.controller.SetAway(false)
			pass(time.Minute)
		}
		want := []string{"STATE_PAUSED", "STATE_RUNNING", "STATE_PAUSED", "STATE_RUNNING", "STATE_PAUSED"}
		if diff := cmp.Diff(want, w.authorizedStates()); diff != "" {
			t.Errorf("states (-want +got):\n%s", diff)
		}
		p.term()
		p.wantEnd(vmpb.EndStopped)
		if buttons := w.machine().Buttons(); buttons != 0 {
			t.Error("the power button of a stopped guest was pressed")
		}
	})
}

func TestGuest_CrashReportsQEMUOutput(t *testing.T) {
	withFixture(t, func(w *fixture) {
		p := w.start()
		w.machine().Crash("qemu: out of luck")
		end := p.wantEnd(vmpb.EndQEMUFailed)
		if want := "QEMU exited: Crashed (exit code 1): qemu: out of luck"; end.Message != want {
			t.Errorf("message = %q, want %q", end.Message, want)
		}
	})
}

func TestHypervisor_SIGTERMShutsGuestDown(t *testing.T) {
	for name, test := range map[string]struct {
		ignoresButton, stuck bool
		want                 qemu.ExitReason
		takes                time.Duration
		boots                int
		buttons              int
		limit                *durationpb.Duration // VMSpec.shutdown_time
	}{
		"guest with more time":          {ignoresButton: true, limit: durationpb.New(50 * time.Second), want: qemu.HostQuit, takes: 50 * time.Second, buttons: 17},
		"obedient guest":                {want: qemu.GuestShutdown, buttons: 1},
		"guest that boots":              {boots: 2, want: qemu.GuestShutdown, takes: 6 * time.Second, buttons: 3},
		"guest that ignores the button": {ignoresButton: true, want: qemu.HostQuit, takes: 20 * time.Second, buttons: 7},
		"stuck machine":                 {ignoresButton: true, stuck: true, want: qemu.HostKilled, takes: 22 * time.Second, buttons: 7},
	} {
		t.Run(name, func(t *testing.T) {
			withFixture(t, func(w *fixture) {
				w.machines.IgnorePowerButton, w.machines.Stuck = test.ignoresButton, test.stuck
				w.config.Spec.ShutdownTime = test.limit
				p := w.start()
				w.machine().Boots(test.boots)
				begin := time.Now()
				p.term()
				p.term() // a second signal has no effect
				p.wantEnd(vmpb.EndStopped)
				took := time.Since(begin)
				if exit := w.machine().Exit(); exit.Reason != test.want || w.machine().Buttons() != test.buttons {
					t.Errorf("exit = %s after %d presses of the power button", exit, w.machine().Buttons())
				}
				if took < test.takes || took > test.takes+2*time.Second {
					t.Errorf("terminated after %s, want about %s", took, test.takes)
				}
				if test.ignoresButton && w.states()[len(w.states())-1] != "STATE_STOPPING" {
					t.Errorf("states = %v", w.states())
				}
			})
		})
	}
}

// The guest runs, but QEMU's state was not read yet.
func TestHypervisor_SIGTERMDuringBoot(t *testing.T) {
	withFixture(t, func(w *fixture) {
		w.machines.Continued = func(ctx context.Context) {
			<-ctx.Done()
			<-w.machine().Changed() // otherwise the order of the two events would be random
		}
		p := w.start()
		p.term()
		p.wantEnd(vmpb.EndStopped)
		if exit := w.machine().Exit(); exit.Reason != qemu.GuestShutdown || w.machine().Buttons() != 1 {
			t.Errorf("exit = %s after %d presses of the power button", exit, w.machine().Buttons())
		}
	})
}

// QEMU has closed its connection, but it has not freed its memory yet.
func TestGuest_SlowQEMUExitIsAwaited(t *testing.T) {
	for name, test := range map[string]struct {
		then  func(*fixture)
		want  string
		takes time.Duration
	}{
		"guest shut down": {func(w *fixture) { pass(20 * time.Second); w.machine().ShutDown() }, vmpb.EndGuestShutdown, 20 * time.Second},
		"crashed":         {func(w *fixture) { pass(time.Second); w.machine().Crash("words") }, vmpb.EndQEMUFailed, time.Second},
		"never":           {func(*fixture) {}, vmpb.EndQEMUFailed, 32 * time.Second},
		"terminated": {func(w *fixture) {
			pass(time.Second)
			w.controller.Respond(leaseTerminated())
		}, vmpb.EndTerminated, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			withFixture(t, func(w *fixture) {
				p := w.start()
				begin := time.Now()
				w.machine().Disconnect()
				test.then(w)
				p.wantEnd(test.want)
				if took := time.Since(begin); took != test.takes {
					t.Errorf("terminated after %s, want %s", took, test.takes)
				}
			})
		})
	}
}

func TestHypervisor_SIGTERMBeforeGuestRuns(t *testing.T) {
	for name, given := range map[string]func(*fixture){
		"waiting for the controller": func(w *fixture) { w.controller.Respond(nil) },
		"waiting for the disk": func(w *fixture) {
			lock, err := disk.Acquire(w.config.Paths.RootDisk)
			must(w.t, err)
			w.t.Cleanup(func() { must(w.t, lock.Release()) })
		},
		"waiting for the confirmation": func(w *fixture) {
			w.preparing()
			w.controller.RefuseReports(status.Error(codes.Unavailable, "no"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			withFixture(t, func(w *fixture) {
				given(w)
				p := w.start()
				p.wantAlive()
				begin := time.Now()
				p.term()
				p.wantEnd(vmpb.EndStopped)
				if took := time.Since(begin); took > 2*time.Second {
					t.Errorf("terminated after %s", took)
				}
				for _, machine := range w.machines.Started() {
					if machine.Exit().Reason != qemu.HostKilled {
						t.Errorf("a machine is still running: %s", machine.Exit())
					}
				}
			})
		})
	}
}

func TestDisk_LockedDiskIsAwaited(t *testing.T) {
	t.Run("is released", func(t *testing.T) {
		withFixture(t, func(w *fixture) {
			lock, err := disk.Acquire(w.config.Paths.RootDisk)
			must(t, err)
			p := w.start()
			pass(30 * time.Second)
			if len(w.controller.Runs()) != 0 || w.disk() != "" {
				t.Error("the hypervisor asked the controller or changed the disk without the lock")
			}
			must(t, lock.Release())
			pass(2 * time.Second)
			p.wantAlive()
			if state := w.machine().Status(); state != running {
				t.Errorf("state = %s", state)
			}
		})
	})
	t.Run("stays locked", func(t *testing.T) {
		withFixture(t, func(w *fixture) {
			lock, err := disk.Acquire(w.config.Paths.RootDisk)
			must(t, err)
			defer func() { must(t, lock.Release()) }()
			begin := time.Now()
			w.start().wantEnd(vmpb.EndDiskLocked)
			if took := time.Since(begin); took < time.Minute || took > 65*time.Second {
				t.Errorf("terminated after %s, want one minute", took)
			}
			if diff := cmp.Diff([]string{"STATE_WAITING"}, w.states()); diff != "" {
				t.Errorf("states (-want +got):\n%s", diff)
			}
			w.wantLast("STATE_WAITING CAUSE_DISK_LOCKED")
		})
	})
	t.Run("by a machine that terminates", func(t *testing.T) {
		withFixture(t, func(w *fixture) {
			w.machines.Refuse = func(starts int) error {
				if starts < 3 {
					return qemu.ErrDiskLocked
				}
				return nil
			}
			p := w.start()
			pass(5 * time.Second)
			p.wantAlive()
			if state := w.machine().Status(); state != running {
				t.Errorf("state = %s", state)
			}
		})
	})
}

func TestReport_IsRepeatedUntilConfirmed(t *testing.T) {
	withFixture(t, func(w *fixture) {
		w.controller.RefuseReports(status.Error(codes.FailedPrecondition, "not authoritative"))
		p := w.start()
		pass(time.Hour)
		p.wantAlive()
		if refusals := w.controller.Refusals(); refusals < 100 || refusals > 1000 {
			t.Errorf("got %d reports in an hour", refusals)
		}
		w.controller.RefuseReports(nil)
		pass(12 * time.Second)
		if diff := cmp.Diff([]string{"STATE_RUNNING"}, w.states()); diff != "" {
			t.Errorf("states (-want +got):\n%s", diff)
		}
	})
}

func TestReport_StopsIfUnimplemented(t *testing.T) {
	withFixture(t, func(w *fixture) {
		w.preparing() // and the hypervisor does not wait for the confirmation
		w.controller.RefuseReports(status.Error(codes.Unimplemented, "unknown method"))
		p := w.start()
		if state := w.machine().Status(); state != running {
			t.Errorf("state = %s", state)
		}
		pass(time.Hour)
		p.wantAlive()
		if refusals := w.controller.Refusals(); refusals != 1 {
			t.Errorf("got %d reports, want 1", refusals)
		}
	})
}

func TestHypervisor_RunIDsIncrease(t *testing.T) {
	withFixture(t, func(w *fixture) {
		for range 3 {
			p := w.start()
			p.term()
			p.wantEnd(vmpb.EndStopped)
		}
		runs := w.controller.Runs()
		for i := 1; i < len(runs); i++ {
			if runs[i].GetRunId() <= runs[i-1].GetRunId() {
				t.Errorf("run ID %d after %d", runs[i].GetRunId(), runs[i-1].GetRunId())
			}
		}
		if len(runs) != 3 {
			t.Errorf("got %d runs, want 3", len(runs))
		}
	})
}
