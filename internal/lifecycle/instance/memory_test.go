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

func TestEngine_KeepsResults(t *testing.T) {
	for want, asked := range map[string]func(*process) any{
		"Exists": func(p *process) any { return p.Ensure(request("m")) },
		"Lost":   func(p *process) any { return p.Ensure(known("m")) },
		"Gone":   func(p *process) any { return p.Delete(known("m")) },
	} {
		t.Run(want, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *fake.Driver, p *process) {
				is[instance.Pending](t, asked(p))
				synctest.Wait()
				made(t, d)
				for range 3 {
					if got := asked(p); kind(got) != want {
						t.Fatalf("result %T %+v, want %s for good", got, got, want)
					}
					time.Sleep(time.Hour)
				}
				equalCalls(t, d)

				p.Forget(keyOf(request("m")))
				is[instance.Pending](t, asked(p))
			})
		})
	}
}

func TestBackoff_GrowsUntilMaximum(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake.Driver, p *process) {
		fail := func(code codes.Code) {
			d.OnStatus(fake.Always[driver.GetMachineStatusRequest, driver.GetMachineStatusResponse](nil, status.Error(code, "not now")))
		}
		fail(codes.Unavailable)
		req := request("m")
		wait := retry(ask(p.Ensure, req))
		for _, want := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 60} {
			within(t, "wait", wait, want*time.Second)
			made(t, d)
			time.Sleep(wait - time.Nanosecond)
			if early := is[instance.Failed](t, ask(p.Ensure, req)); early.Retry != time.Nanosecond {
				t.Fatalf("result %+v just before the call is due", early)
			}
			equalCalls(t, d)
			time.Sleep(time.Nanosecond)
			wait = retry(ask(p.Ensure, req))
			equalCalls(t, d, fake.GetMachineStatus)
		}

		fail(codes.Internal)
		time.Sleep(wait)
		within(t, "wait after another code", retry(ask(p.Ensure, req)), 5*time.Second)
	})
}

// TestReset_ClearsBackoff checks that a driver that is available again is called immediately, and that its next failure
// counts as the first. Back-offs of other errors are not reset.
func TestReset_ClearsBackoff(t *testing.T) {
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
				p.ResetUnavailable(keyOf(req)) // for an unknown instance
				for range 5 {
					time.Sleep(retry(ask(p.Ensure, req)))
				}
				ask(p.Ensure, req)
				made(t, d)

				p.ResetUnavailable(keyOf(req))
				again := retry(ask(p.Ensure, req))
				if asked := len(made(t, d)) > 0; asked != tc.want {
					t.Errorf("called immediately: %v, want %v", asked, tc.want)
				}
				if tc.want {
					within(t, "wait", again, time.Second)
				}
			})
		})
	}
}

func TestBackoff_RestartsAfterChange(t *testing.T) {
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
		"secret, moved": {"the same bytes under another key are different data", func(r *instance.Request) {
			r.Secret.Data = map[string][]byte{"userDat": []byte("ahello")}
		}, true},
		"force": {"the user forces the deletion", func(r *instance.Request) {
			r.Machine.Labels = map[string]string{v1alpha1.LabelKeyForceDeletion: "True"}
		}, true},
		"our writes": {"changes by the controller do not make calls succeed", func(r *instance.Request) {
			r.Machine.ResourceVersion = "2"
			r.Machine.Finalizers = []string{v1alpha1.FinalizerMCM}
			r.Machine.Annotations = map[string]string{v1alpha1.AnnotationKeyMachinePriority: "3"}
			r.Machine.Status.CurrentStatus.Phase = v1alpha1.MachineCrashLoopBackOff
		}, false},
		"secret's metadata": {"metadata does not count", func(r *instance.Request) {
			r.Secret = &corev1.Secret{Data: r.Secret.Data}
			r.Secret.ResourceVersion = "2"
		}, false},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *fake.Driver, p *process) {
				d.OnStatus(answering(status.Error(codes.Unavailable, "not now")))
				time.Sleep(retry(ask(p.Ensure, request("m"))))
				ask(p.Ensure, request("m"))
				made(t, d)

				req := request("m")
				tc.change(&req)
				result := ask(p.Ensure, req)
				if asked := len(made(t, d)) > 0; asked != tc.want {
					t.Errorf("%s: called immediately: %v, want %v", tc.reason, asked, tc.want)
				}
				wait := 2 * time.Second
				if tc.want {
					wait = time.Second
				}
				within(t, "wait", retry(result), wait)
			})
		})
	}
}

// hang blocks until the call is canceled and then a little longer, like a provider that does not stop
// immediately.
func hang(ctx context.Context, longer time.Duration) error {
	<-ctx.Done()
	time.Sleep(longer)
	return ctx.Err()
}

// hanging returns a creation that hangs and has no effect.
func hanging(longer time.Duration) fake.Hook[driver.CreateMachineRequest, driver.CreateMachineResponse] {
	return func(ctx context.Context, _ *driver.CreateMachineRequest, _ func() (*driver.CreateMachineResponse, error)) (*driver.CreateMachineResponse, error) {
		return nil, hang(ctx, longer)
	}
}

// grace is how long a creation may take to return after a deletion was requested.
const grace = 10 * time.Second

func TestDelete_CancelsAndAwaitsCreation(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake.Driver, p *process) {
		d.OnCreate(hanging(time.Minute))
		req := request("m")
		p.Ensure(req)
		synctest.Wait()
		for range 2 {
			is[instance.Pending](t, p.Delete(req))
		}
		time.Sleep(grace + time.Minute - time.Second)
		is[instance.Pending](t, p.Delete(req)) // the canceled creation is still running
		equalCalls(t, d, fake.GetMachineStatus, fake.CreateMachine)

		time.Sleep(2 * time.Second)
		synctest.Wait()
		if p.wakes(req) != 1 {
			t.Errorf("woken %d times for one call", p.wakes(req))
		}
		is[instance.Gone](t, ask(p.Delete, req))
		equalCalls(t, d, fake.DeleteMachine, fake.GetMachineStatus)
		checkOverlaps(t, d)
	})
}

// TestDelete_LetsSentRequestComplete checks that a creation is not canceled while its request is being carried out,
// even though its response is no longer needed. Otherwise the deletion would find nothing, and the resource
// would be created after it. No further requests are sent.
func TestDelete_LetsSentRequestComplete(t *testing.T) {
	// slowly does something after a delay, whether or not the caller still waits.
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
			for kind(ask(p.Delete, req)) != "Gone" {
				time.Sleep(100 * time.Millisecond)
			}
			if tokens != 1 {
				t.Error("a token is created after the deletion")
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
			is[instance.Gone](t, ask(p.Delete, req))
			if len(d.VMs()) != 0 {
				t.Errorf("VMs %v", d.VMs())
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
			p.Delete(req) // nothing was created, so there is nothing to wait for
			synctest.Wait()
			d.OnStatus(nil)
			is[instance.Gone](t, ask(p.Delete, req))
		})
	})
}

func TestForget_CancelsAndAwaits(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake.Driver, p *process) {
		d.OnCreate(hanging(time.Minute))
		req := request("m")
		p.Ensure(req)
		synctest.Wait()
		p.Forget(keyOf(req))
		p.Forget(keyOf(req))

		// A machine of the same name is created while the call for the old one is still running.
		d.OnCreate(nil)
		again := request("m")
		again.Machine.UID = "another"
		is[instance.Pending](t, ask(p.Ensure, again)) // the forgotten call is still running
		time.Sleep(time.Minute)
		synctest.Wait()
		if p.wakes(req) != 1 {
			t.Errorf("woken %d times for one call", p.wakes(req))
		}
		is[instance.Exists](t, ask(p.Ensure, again))
		checkOverlaps(t, d)
	})
}

func TestEngine_LostLeadershipCancelsCalls(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake.Driver, p *process) {
		d.OnCreate(hanging(0))
		p.Ensure(request("m"))
		synctest.Wait()
		p.stop()
		synctest.Wait()
		if creations := d.Calls(fake.CreateMachine); len(creations) != 1 || !errors.Is(creations[0].Err, context.Canceled) {
			t.Errorf("the call returned %v", creations)
		}
		// No more calls are started, because the next leader may be working on it.
		made(t, d)
		is[instance.Pending](t, p.Ensure(request("other")))
		synctest.Wait()
		equalCalls(t, d)
	})
}

func TestEngine_MachinesDoNotBlockEachOther(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake.Driver, p *process) {
		d.OnStatus(func(ctx context.Context, req *driver.GetMachineStatusRequest, do func() (*driver.GetMachineStatusResponse, error)) (*driver.GetMachineStatusResponse, error) {
			if req.Machine.Name == "stuck" {
				return nil, hang(ctx, 0)
			}
			return found(ctx, req, do)
		})
		p.Ensure(request("stuck"))
		for _, name := range []string{"a", "b", "c"} {
			is[instance.Exists](t, ask(p.Ensure, request(name)))
		}
	})
}
