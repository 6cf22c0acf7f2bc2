package hypervisor_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/disk"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/qemu"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

func TestGuestRunsOnceAuthorized(t *testing.T) {
	withFixture(t, func(w *fixture) {
		w.controller.Answer(nil)
		p := w.start()
		pass(5 * time.Second)
		if started := w.machines.Started(); len(started) != 0 {
			t.Fatal("the machine was started before the controller's answer")
		}
		w.controller.Answer(leaseOK())
		pass(0)
		if state := w.machine().Status(); state != running {
			t.Errorf("the machine is %s", state)
		}
		w.machine().ShutDown()
		p.ends(vmpb.EndGuestShutdown)
		if diff := cmp.Diff([]string{"STATE_WAITING", "STATE_RUNNING"}, w.states()); diff != "" {
			t.Errorf("states (-want +got):\n%s", diff)
		}
	})
}

func TestTerminateBeforeTheStart(t *testing.T) {
	withFixture(t, func(w *fixture) {
		w.controller.Answer(leaseTerminated())
		w.start().ends(vmpb.EndTerminated)
		if len(w.machines.Started()) != 0 || w.disk() != "" {
			t.Error("something was started or written")
		}
	})
}

func TestTerminateKillsTheGuestAtOnce(t *testing.T) {
	for name, before := range map[string]func(*fixture, *process){
		"running":  func(*fixture, *process) {},
		"held":     func(w *fixture, _ *process) { w.controller.Answer(leasePaused()); pass(0) },
		"stopping": func(_ *fixture, p *process) { p.term(); pass(0) },
	} {
		t.Run(name, func(t *testing.T) {
			withFixture(t, func(w *fixture) {
				w.machines.Deaf = true
				p := w.start()
				before(w, p)
				begin := time.Now()
				w.controller.Answer(leaseTerminated())
				p.ends(vmpb.EndTerminated)
				if exit := w.machine().Exit(); exit.Reason != qemu.HostKilled {
					t.Errorf("the machine ended with %s", exit)
				}
				if took := time.Since(begin); took > 2*time.Second {
					t.Errorf("it took %s", took)
				}
				lock, err := disk.Acquire(w.config.Paths.RootDisk)
				if err != nil {
					t.Fatalf("the lock is not free: %v", err)
				}
				must(t, lock.Release())
			})
		})
	}
}

func TestControllerAwayAtTheStart(t *testing.T) {
	withFixture(t, func(w *fixture) {
		w.preparing()
		w.controller.SetAway(true)
		p := w.start()
		pass(9 * time.Second)
		if len(w.machines.Started()) != 0 {
			t.Fatal("the controller was not waited for")
		}
		// Ten seconds for the authorization, and ten for the confirmation of the disk.
		pass(12 * time.Second)
		if state := w.machine().Status(); state != running {
			t.Errorf("the machine is %s", state)
		}
		w.controller.SetAway(false)
		pass(time.Minute)
		p.lives()
		if diff := cmp.Diff([]string{"STATE_RUNNING"}, w.states()); diff != "" {
			t.Errorf("states (-want +got):\n%s", diff)
		}
		reports := w.controller.Reports()
		if !reports[len(reports)-1].GetImagePrepared() {
			t.Error("the controller does not learn that the disk is prepared")
		}
	})
}

// TestNobodyIssuesACertificate: a hypervisor that cannot authenticate does not start its guest, reports that, and
// retries; finally its Pod reports the reason. An unreachable controller, which follows, is another case.
func TestNobodyIssuesACertificate(t *testing.T) {
	for name, test := range map[string]struct {
		until  time.Duration
		starts bool
	}{
		"for ever":   {time.Hour, false},
		"for a time": {25 * time.Second, true},
	} {
		t.Run(name, func(t *testing.T) {
			withFixture(t, func(w *fixture) {
				w.controller.SetAway(true)
				begin := time.Now()
				w.config.IdentityError = func() error {
					if time.Since(begin) < test.until {
						return errors.New("nobody issues certificates")
					}
					return nil
				}
				p := w.start()
				pass(24 * time.Second)
				if len(w.machines.Started()) != 0 {
					t.Fatal("the guest was started")
				}
				p.lives()
				pass(40 * time.Second)
				if test.starts {
					if state := w.machine().Status(); state != running {
						t.Errorf("the machine is %s", state)
					}
					return
				}
				p.ends(vmpb.EndNotAuthorized)
				if len(w.machines.Started()) != 0 {
					t.Error("the guest was started")
				}
			})
		})
	}
}

func TestControllerAwayForLong(t *testing.T) {
	withFixture(t, func(w *fixture) {
		p := w.start()
		w.controller.SetAway(true)
		pass(100 * time.Hour)
		p.lives()
		if state := w.machine().Status(); state != running {
			t.Errorf("the machine is %s", state)
		}
		// What it requests as soon as it is back is obeyed.
		w.controller.Answer(leaseTerminated())
		w.controller.SetAway(false)
		begin := time.Now()
		p.ends(vmpb.EndTerminated)
		if took := time.Since(begin); took > 30*time.Second {
			t.Errorf("it took %s to find the controller again", took)
		}
	})
}

func TestErrorsOfTheStreamStopNothing(t *testing.T) {
	for _, code := range []codes.Code{
		codes.InvalidArgument, codes.NotFound, codes.PermissionDenied, codes.FailedPrecondition,
		codes.Unauthenticated, codes.Unimplemented, codes.Internal, codes.Unavailable,
	} {
		t.Run(code.String(), func(t *testing.T) {
			withFixture(t, func(w *fixture) {
				w.controller.RefuseStreams(status.Error(code, "no"))
				p := w.start()
				pass(time.Hour)
				p.lives()
				if state := w.machine().Status(); state != running {
					t.Errorf("the machine is %s", state)
				}
			})
		})
	}
}

func TestExactlyOneStreamIsOpen(t *testing.T) {
	withFixture(t, func(w *fixture) {
		p := w.start()
		for range 50 {
			w.controller.EndStreams()
			pass(15 * time.Second)
			if open, most := w.controller.Streams(); open != 1 || most != 1 {
				t.Fatalf("%d streams are open, at most %d were; want 1", open, most)
			}
		}
		p.lives()
		runs := w.controller.Runs()
		if len(runs) != 51 {
			t.Errorf("%d streams were opened, want 51", len(runs))
		}
		for _, run := range runs {
			if run.GetRunId() != runs[0].GetRunId() || run.GetPodName() != "web-1" ||
				run.GetVmName() != "web" || run.GetNamespace() != "default" {
				t.Errorf("a stream of %v, want %v", run, runs[0])
			}
		}
	})
}

// A controller that responds and ends each stream immediately does not get too many requests.
func TestStreamsThatEndAtOnceAreSpaced(t *testing.T) {
	withFixture(t, func(w *fixture) {
		w.controller.RefuseStreams(status.Error(codes.Unavailable, "starting"))
		p := w.start()
		pass(time.Hour)
		p.lives()
		w.controller.RefuseStreams(nil)
		pass(15 * time.Second)
		if open, _ := w.controller.Streams(); open != 1 {
			t.Errorf("%d streams are open after the controller came back", open)
		}
	})
}

func TestUnknownStatusChangesNothing(t *testing.T) {
	withFixture(t, func(w *fixture) {
		p := w.start()
		for _, answer := range []*vmpb.RunLeaseUpdate{{}, {Status: 77, Paused: true}} {
			w.controller.Answer(answer)
			pass(time.Minute)
			p.lives()
			if state := w.machine().Status(); state != running {
				t.Errorf("%v: the machine is %s", answer, state)
			}
		}
	})
}

func TestPausedHoldsTheGuest(t *testing.T) {
	withFixture(t, func(w *fixture) {
		w.controller.Answer(leasePaused())
		p := w.start()
		if state := w.machine().Status(); state == running {
			t.Error("the guest runs, but was to be held from the beginning")
		}
		for range 2 {
			w.controller.Answer(leaseOK())
			pass(0)
			if state := w.machine().Status(); state != running {
				t.Errorf("let go, the machine is %s", state)
			}
			w.controller.Answer(leasePaused())
			pass(0)
			if state := w.machine().Status(); state != paused {
				t.Errorf("held, the machine is %s", state)
			}
			// It stays stopped while the controller is unavailable.
			w.controller.SetAway(true)
			pass(time.Hour)
			if state := w.machine().Status(); state != paused {
				t.Errorf("held without a controller, the machine is %s", state)
			}
			w.controller.SetAway(false)
			pass(time.Minute)
		}
		want := []string{"STATE_PAUSED", "STATE_RUNNING", "STATE_PAUSED", "STATE_RUNNING", "STATE_PAUSED"}
		if diff := cmp.Diff(want, w.authorizedStates()); diff != "" {
			t.Errorf("states (-want +got):\n%s", diff)
		}
		p.term()
		p.ends(vmpb.EndStopped)
		if buttons := w.machine().Buttons(); buttons != 0 {
			t.Error("the button of a guest that is held was pressed")
		}
	})
}

func TestGuest_CrashReportsQEMUOutput(t *testing.T) {
	withFixture(t, func(w *fixture) {
		p := w.start()
		w.machine().Crash("qemu: out of luck")
		end := p.ends(vmpb.EndQEMUFailed)
		if want := "QEMU exited: Crashed (exit code 1): qemu: out of luck"; end.Message != want {
			t.Errorf("message %q, want %q", end.Message, want)
		}
	})
}

func TestHypervisor_SIGTERMShutsGuestDown(t *testing.T) {
	for name, test := range map[string]struct {
		deaf, stuck bool
		want        qemu.ExitReason
		takes       time.Duration
		boots       int
		buttons     int
	}{
		"obedient guest":   {want: qemu.GuestShutdown, buttons: 1},
		"guest that boots": {boots: 2, want: qemu.GuestShutdown, takes: 6 * time.Second, buttons: 3},
		"deaf guest":       {deaf: true, want: qemu.HostQuit, takes: 20 * time.Second, buttons: 7},
		"stuck machine":    {deaf: true, stuck: true, want: qemu.HostKilled, takes: 22 * time.Second, buttons: 7},
	} {
		t.Run(name, func(t *testing.T) {
			withFixture(t, func(w *fixture) {
				w.machines.Deaf, w.machines.Stuck = test.deaf, test.stuck
				p := w.start()
				w.machine().Boots(test.boots)
				begin := time.Now()
				p.term()
				p.term() // a second request changes nothing
				p.ends(vmpb.EndStopped)
				took := time.Since(begin)
				if exit := w.machine().Exit(); exit.Reason != test.want || w.machine().Buttons() != test.buttons {
					t.Errorf("the machine ended with %s after %d buttons", exit, w.machine().Buttons())
				}
				if took < test.takes || took > test.takes+2*time.Second {
					t.Errorf("it took %s, want about %s", took, test.takes)
				}
				if test.deaf && w.states()[len(w.states())-1] != "STATE_STOPPING" {
					t.Errorf("states are %v", w.states())
				}
			})
		})
	}
}

// TestHypervisor_SIGTERMDuringBoot: the guest runs, but QEMU's state was not read yet.
func TestHypervisor_SIGTERMDuringBoot(t *testing.T) {
	withFixture(t, func(w *fixture) {
		w.machines.Continued = func(ctx context.Context) {
			<-ctx.Done()
			<-w.machine().Changed() // or the order of the two would be one of chance
		}
		p := w.start()
		p.term()
		p.ends(vmpb.EndStopped)
		if exit := w.machine().Exit(); exit.Reason != qemu.GuestShutdown || w.machine().Buttons() != 1 {
			t.Errorf("the machine ended with %s after %d buttons", exit, w.machine().Buttons())
		}
	})
}

// TestGuest_SlowQEMUExitIsAwaited: QEMU has closed its connection, but has not freed its memory yet.
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
			w.controller.Answer(leaseTerminated())
		}, vmpb.EndTerminated, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			withFixture(t, func(w *fixture) {
				p := w.start()
				begin := time.Now()
				w.machine().Disconnect()
				test.then(w)
				p.ends(test.want)
				if took := time.Since(begin); took != test.takes {
					t.Errorf("it took %s, want %s", took, test.takes)
				}
			})
		})
	}
}

func TestAskedToEndBeforeTheGuestRuns(t *testing.T) {
	for name, given := range map[string]func(*fixture){
		"waiting for the controller": func(w *fixture) { w.controller.Answer(nil) },
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
				p.lives()
				begin := time.Now()
				p.term()
				p.ends(vmpb.EndStopped)
				if took := time.Since(begin); took > 2*time.Second {
					t.Errorf("it took %s", took)
				}
				for _, machine := range w.machines.Started() {
					if machine.Exit().Reason != qemu.HostKilled {
						t.Errorf("a machine is left: %s", machine.Exit())
					}
				}
			})
		})
	}
}

func TestLockedDisk(t *testing.T) {
	t.Run("becomes free", func(t *testing.T) {
		withFixture(t, func(w *fixture) {
			lock, err := disk.Acquire(w.config.Paths.RootDisk)
			must(t, err)
			p := w.start()
			pass(30 * time.Second)
			if len(w.controller.Runs()) != 0 || w.disk() != "" {
				t.Error("the controller was asked, or the disk touched, without the lock")
			}
			must(t, lock.Release())
			pass(2 * time.Second)
			p.lives()
			if state := w.machine().Status(); state != running {
				t.Errorf("the machine is %s", state)
			}
		})
	})
	t.Run("stays locked", func(t *testing.T) {
		withFixture(t, func(w *fixture) {
			lock, err := disk.Acquire(w.config.Paths.RootDisk)
			must(t, err)
			defer func() { must(t, lock.Release()) }()
			begin := time.Now()
			w.start().ends(vmpb.EndDiskLocked)
			if took := time.Since(begin); took < time.Minute || took > 65*time.Second {
				t.Errorf("it took %s, want a minute", took)
			}
			if diff := cmp.Diff([]string{"STATE_WAITING"}, w.states()); diff != "" {
				t.Errorf("states (-want +got):\n%s", diff)
			}
			w.wantLast("STATE_WAITING CAUSE_DISK_LOCKED")
		})
	})
	t.Run("by a machine that dies", func(t *testing.T) {
		withFixture(t, func(w *fixture) {
			w.machines.Refuse = func(starts int) error {
				if starts < 3 {
					return qemu.ErrDiskLocked
				}
				return nil
			}
			p := w.start()
			pass(5 * time.Second)
			p.lives()
			if state := w.machine().Status(); state != running {
				t.Errorf("the machine is %s", state)
			}
		})
	})
}

func TestReport_IsRepeatedUntilConfirmed(t *testing.T) {
	withFixture(t, func(w *fixture) {
		w.controller.RefuseReports(status.Error(codes.FailedPrecondition, "not authoritative"))
		p := w.start()
		pass(time.Hour)
		p.lives()
		if refusals := w.controller.Refusals(); refusals < 100 || refusals > 1000 {
			t.Errorf("%d reports in an hour", refusals)
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
		w.preparing() // and the confirmation is not waited for
		w.controller.RefuseReports(status.Error(codes.Unimplemented, "unknown method"))
		p := w.start()
		if state := w.machine().Status(); state != running {
			t.Errorf("the machine is %s", state)
		}
		pass(time.Hour)
		p.lives()
		if refusals := w.controller.Refusals(); refusals != 1 {
			t.Errorf("%d reports, want 1", refusals)
		}
	})
}

func TestRunIDsGrow(t *testing.T) {
	withFixture(t, func(w *fixture) {
		for range 3 {
			p := w.start()
			p.term()
			p.ends(vmpb.EndStopped)
		}
		runs := w.controller.Runs()
		for i := 1; i < len(runs); i++ {
			if runs[i].GetRunId() <= runs[i-1].GetRunId() {
				t.Errorf("run %d after %d", runs[i].GetRunId(), runs[i-1].GetRunId())
			}
		}
		if len(runs) != 3 {
			t.Errorf("%d runs, want 3", len(runs))
		}
	})
}
