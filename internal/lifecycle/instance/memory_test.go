package instance_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/fake"
	"github.com/millwright-dev/millwright/driver/status"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
)

func TestAnswersAreKept(t *testing.T) {
	lost := func(p *process) instance.Answer { return p.Ensure(known("m")) }
	exists := func(p *process) instance.Answer { return p.Ensure(request("m")) }
	gone := func(p *process) instance.Answer { return p.Delete(known("m")) }
	for name, tc := range map[string]struct {
		asked func(*process) instance.Answer
		want  instance.State
	}{
		"exists": {exists, instance.Exists},
		"lost":   {lost, instance.Lost},
		"gone":   {gone, instance.Gone},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *fake.Driver, p *process) {
				if got := tc.asked(p); got.State != instance.Underway {
					t.Fatalf("state %v at first, want Underway", got.State)
				}
				synctest.Wait()
				made(t, d)
				for range 3 {
					if got := tc.asked(p); got.State != tc.want || got.Retry != 0 {
						t.Fatalf("answer %+v, want state %v for good", got, tc.want)
					}
					time.Sleep(time.Hour)
				}
				equalCalls(t, d)

				p.Forget(keyOf(request("m")))
				if got := tc.asked(p); got.State != instance.Underway {
					t.Errorf("state %v after it was forgotten, want Underway", got.State)
				}
			})
		})
	}
}

func TestBackoff(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake.Driver, p *process) {
		fail := func(code codes.Code) {
			d.OnStatus(fake.Always[driver.GetMachineStatusRequest, driver.GetMachineStatusResponse](nil, status.Error(code, "not now")))
		}
		fail(codes.Unavailable)
		req := request("m")
		answer := ask(p.Ensure, req)
		for _, want := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 60} {
			within(t, "wait", answer.Retry, want*time.Second)
			made(t, d)
			time.Sleep(answer.Retry - time.Nanosecond)
			if early := ask(p.Ensure, req); early.State != instance.Failed || early.Retry != time.Nanosecond {
				t.Fatalf("answer %+v just before it is due", early)
			}
			equalCalls(t, d)
			time.Sleep(time.Nanosecond)
			answer = ask(p.Ensure, req)
			equalCalls(t, d, fake.GetMachineStatus)
		}

		fail(codes.Internal)
		time.Sleep(answer.Retry)
		answer = ask(p.Ensure, req)
		within(t, "wait after another code", answer.Retry, 5*time.Second)
	})
}

// TestHurry: a driver that is available again is asked at once, and its next failure counts as the first.
// Other failures are not its.
func TestHurry(t *testing.T) {
	for name, tc := range map[string]struct {
		code codes.Code
		want bool
	}{
		"was not available": {codes.Unavailable, true},
		"refused":           {codes.InvalidArgument, false},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *fake.Driver, p *process) {
				d.OnStatus(fake.Always[driver.GetMachineStatusRequest, driver.GetMachineStatusResponse](nil, status.Error(tc.code, "no")))
				req := request("m")
				p.Hurry(keyOf(req)) // of what is not known
				for range 5 {
					time.Sleep(ask(p.Ensure, req).Retry)
				}
				ask(p.Ensure, req)
				made(t, d)

				p.Hurry(keyOf(req))
				again := ask(p.Ensure, req).Retry
				if asked := len(made(t, d)) > 0; asked != tc.want {
					t.Errorf("asked at once: %v, want %v", asked, tc.want)
				}
				if tc.want {
					within(t, "wait", again, time.Second)
				}
			})
		})
	}
}

func TestBackoffRestartsWhenSomethingChanged(t *testing.T) {
	cases := map[string]struct {
		reason string
		change func(*instance.Request)
		want   bool
	}{
		"generation":       {"the user changed the machine", func(r *instance.Request) { r.Machine.Generation++ }, true},
		"machine":          {"it is another machine of that name", func(r *instance.Request) { r.Machine.UID = "other" }, true},
		"class generation": {"the class was repaired", func(r *instance.Request) { r.Class.Generation++ }, true},
		"class":            {"it is another class", func(r *instance.Request) { r.Class.UID = "other" }, true},
		"secret":           {"the credentials were repaired", func(r *instance.Request) { r.Secret.Data["key"] = []byte("new") }, true},
		"secret, moved": {"the same bytes under other keys are other data", func(r *instance.Request) {
			r.Secret.Data = map[string][]byte{"userDat": []byte("ahello")}
		}, true},
		"force": {"the user urges", func(r *instance.Request) {
			r.Machine.Labels = map[string]string{v1alpha1.LabelKeyForceDeletion: "True"}
		}, true},
		"our writes": {"what the controller notes down makes no call succeed", func(r *instance.Request) {
			r.Machine.ResourceVersion = "2"
			r.Machine.Finalizers = []string{v1alpha1.FinalizerMCM}
			r.Machine.Annotations = map[string]string{v1alpha1.AnnotationKeyMachinePriority: "3"}
			r.Machine.Status.CurrentStatus.Phase = v1alpha1.MachineCrashLoopBackOff
		}, false},
		"secret's metadata": {"it is no data", func(r *instance.Request) {
			r.Secret = &corev1.Secret{Data: r.Secret.Data}
			r.Secret.ResourceVersion = "2"
		}, false},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *fake.Driver, p *process) {
				d.OnStatus(answering(status.Error(codes.Unavailable, "not now")))
				answer := ask(p.Ensure, request("m"))
				time.Sleep(answer.Retry)
				ask(p.Ensure, request("m"))
				made(t, d)

				req := request("m")
				tc.change(&req)
				answer = ask(p.Ensure, req)
				if asked := len(made(t, d)) > 0; asked != tc.want {
					t.Errorf("%s: asked at once %v, want %v", tc.reason, asked, tc.want)
				}
				wait := 2 * time.Second
				if tc.want {
					wait = time.Second
				}
				within(t, "wait", answer.Retry, wait)
			})
		})
	}
}

// hang lets calls run until they are cancelled, and then for a moment longer, as a provider does
// that does not stop at once.
func hang(ctx context.Context, longer time.Duration) error {
	<-ctx.Done()
	time.Sleep(longer)
	return ctx.Err()
}

// hanging is a creation that hangs and has no effect.
func hanging(longer time.Duration) fake.Hook[driver.CreateMachineRequest, driver.CreateMachineResponse] {
	return func(ctx context.Context, _ *driver.CreateMachineRequest, _ func() (*driver.CreateMachineResponse, error)) (*driver.CreateMachineResponse, error) {
		return nil, hang(ctx, longer)
	}
}

// grace is how long a creation may take to end after a deletion.
const grace = 10 * time.Second

func TestDeletionCancelsAndAwaitsCreation(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake.Driver, p *process) {
		d.OnCreate(hanging(time.Minute))
		req := request("m")
		p.Ensure(req)
		synctest.Wait()
		for range 2 {
			if got := p.Delete(req); got.State != instance.Underway {
				t.Fatalf("state %v of a deletion that has to wait", got.State)
			}
		}
		time.Sleep(grace + time.Minute - time.Second)
		if got := p.Delete(req); got.State != instance.Underway {
			t.Fatalf("state %v while the cancelled creation still runs", got.State)
		}
		equalCalls(t, d, fake.GetMachineStatus, fake.CreateMachine)

		time.Sleep(2 * time.Second)
		synctest.Wait()
		if p.wakes(req) != 1 {
			t.Errorf("woken %d times for one call", p.wakes(req))
		}
		if got := ask(p.Delete, req); got.State != instance.Gone {
			t.Errorf("state %v, want Gone", got.State)
		}
		equalCalls(t, d, fake.DeleteMachine, fake.GetMachineStatus)
		checkOverlaps(t, d)
	})
}

// TestDeletionLetsWhatWasSentEnd: what a creation has sent is carried out, also if nobody waits for the
// answer any more. So it is not cut short, or the deletion would find nothing, and something would be
// made after it. Nothing more is sent.
func TestDeletionLetsWhatWasSentEnd(t *testing.T) {
	// slowly does something after a while, whether or not the one who asked for it waits.
	slowly := func(ctx context.Context, do func()) error {
		done := make(chan struct{})
		go func() {
			defer close(done)
			time.Sleep(time.Second)
			do()
		}()
		select {
		case <-done:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	t.Run("token", func(t *testing.T) {
		bubble(t, func(t *testing.T, d *fake.Driver, p *process) {
			req, tokens := request("m"), 0
			req.Prepare = func(ctx context.Context) (*corev1.Secret, error) {
				return req.Secret, slowly(ctx, func() { tokens++ })
			}
			p.Ensure(req)
			synctest.Wait()
			for ask(p.Delete, req).State != instance.Gone {
				time.Sleep(100 * time.Millisecond)
			}
			if tokens != 1 {
				t.Error("a token is made after the deletion")
			}
			equalCalls(t, d, fake.GetMachineStatus, fake.DeleteMachine, fake.GetMachineStatus)
		})
	})
	t.Run("VM", func(t *testing.T) {
		bubble(t, func(t *testing.T, d *fake.Driver, p *process) {
			d.OnCreate(func(ctx context.Context, _ *driver.CreateMachineRequest, do func() (*driver.CreateMachineResponse, error)) (resp *driver.CreateMachineResponse, err error) {
				if late := slowly(ctx, func() { resp, err = do() }); late != nil {
					return nil, late
				}
				return resp, err
			})
			req := request("m")
			p.Ensure(req)
			synctest.Wait()
			ask(p.Delete, req)
			time.Sleep(2 * time.Second)
			if got := ask(p.Delete, req); got.State != instance.Gone || len(d.VMs()) != 0 {
				t.Errorf("state %v, VMs %v", got.State, d.VMs())
			}
			checkOverlaps(t, d)
		})
	})
	t.Run("look", func(t *testing.T) {
		bubble(t, func(t *testing.T, d *fake.Driver, p *process) {
			d.OnStatus(func(ctx context.Context, _ *driver.GetMachineStatusRequest, _ func() (*driver.GetMachineStatusResponse, error)) (*driver.GetMachineStatusResponse, error) {
				return nil, hang(ctx, 0)
			})
			req := request("m")
			p.Ensure(req)
			synctest.Wait()
			p.Delete(req) // nothing was made: there is nothing to wait for
			synctest.Wait()
			d.OnStatus(nil)
			if got := ask(p.Delete, req); got.State != instance.Gone {
				t.Errorf("state %v", got.State)
			}
		})
	})
}

func TestForgettingCancelsAndAwaits(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake.Driver, p *process) {
		d.OnCreate(hanging(time.Minute))
		req := request("m")
		p.Ensure(req)
		synctest.Wait()
		p.Forget(keyOf(req))
		p.Forget(keyOf(req))

		// A machine of the same name comes while the call for the old one still runs.
		d.OnCreate(nil)
		again := request("m")
		again.Machine.UID = "another"
		if got := ask(p.Ensure, again); got.State != instance.Underway {
			t.Fatalf("state %v while the forgotten call still runs", got.State)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if p.wakes(req) != 1 {
			t.Errorf("woken %d times for one call", p.wakes(req))
		}
		if got := ask(p.Ensure, again); got.State != instance.Exists {
			t.Errorf("state %v, want Exists", got.State)
		}
		checkOverlaps(t, d)
	})
}

func TestLosingLeadershipCancels(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake.Driver, p *process) {
		d.OnCreate(hanging(0))
		p.Ensure(request("m"))
		synctest.Wait()
		p.stop()
		synctest.Wait()
		if creations := d.Calls(fake.CreateMachine); len(creations) != 1 || !errors.Is(creations[0].Err, context.Canceled) {
			t.Errorf("the call ended with %v", creations)
		}
		// Nothing is begun any more: the next leader may be at it.
		made(t, d)
		if got := p.Ensure(request("other")); got.State != instance.Underway {
			t.Errorf("state %v after leadership, want Underway", got.State)
		}
		synctest.Wait()
		equalCalls(t, d)
	})
}

func TestDifferentMachinesDoNotWaitForEachOther(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake.Driver, p *process) {
		d.OnStatus(func(ctx context.Context, req *driver.GetMachineStatusRequest, do func() (*driver.GetMachineStatusResponse, error)) (*driver.GetMachineStatusResponse, error) {
			if req.Machine.Name == "stuck" {
				return nil, hang(ctx, 0)
			}
			return found(ctx, req, do)
		})
		p.Ensure(request("stuck"))
		for _, name := range []string{"a", "b", "c"} {
			if got := ask(p.Ensure, request(name)); got.State != instance.Exists {
				t.Errorf("%s: state %v, want Exists", name, got.State)
			}
		}
	})
}
