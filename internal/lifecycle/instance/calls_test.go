package instance_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/fake"
	"github.com/millwright-dev/millwright/driver/status"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
)

// TestCreate_ErrorWithoutResponse checks that the driver's code is kept.
func TestCreate_ErrorWithoutResponse(t *testing.T) {
	for _, code := range []codes.Code{codes.Unavailable, codes.Uninitialized} {
		bubble(t, func(t *testing.T, d *fake.Driver, p *process) {
			d.OnCreate(fake.Always[driver.CreateMachineRequest, driver.CreateMachineResponse](nil, status.Error(code, "scripted")))
			if failure := is[instance.Failed](t, ask(p.Ensure, request("m"))).Failure; failure.Code != code {
				t.Errorf("failure %+v, want %v", failure, code)
			}
		})
	}
}

// TestCreate_NoLastKnownState checks that a failed creation without a state does not erase the stored one.
func TestCreate_NoLastKnownState(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake.Driver, p *process) {
		d.OnCreate(fake.Always[driver.CreateMachineRequest](&driver.CreateMachineResponse{}, status.Error(codes.Unavailable, "not now")))
		if got := is[instance.Failed](t, ask(p.Ensure, request("m"))); got.LastKnownState != nil {
			t.Errorf("state %q", *got.LastKnownState)
		}
	})
}

// TestCreate_DeletedBefore checks that no bootstrap token is made for a Machine that was deleted while the driver
// looked for its instance.
func TestCreate_DeletedBefore(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake.Driver, p *process) {
		d.OnStatus(func(ctx context.Context, _ *driver.GetMachineStatusRequest, do func() (*driver.GetMachineStatusResponse, error)) (*driver.GetMachineStatusResponse, error) {
			time.Sleep(time.Second)
			return do()
		})
		req := request("m")
		req.Prepare = func(context.Context) (*corev1.Secret, error) {
			t.Error("a token is made")
			return req.Secret, nil
		}
		p.Ensure(req)
		synctest.Wait()
		p.Delete(req)
		time.Sleep(time.Minute)
		equalCalls(t, d, fake.GetMachineStatus)
	})
}

// TestInstance_Limits checks what can just be stored of an instance, and what cannot any more.
func TestInstance_Limits(t *testing.T) {
	text := func(length int) string { return strings.Repeat("x", length) }
	for name, tc := range map[string]struct {
		given        driver.CreateMachineResponse
		nodeExpected bool
		want         driver.CreateMachineResponse // without a provider ID if the instance is refused
	}{
		"provider ID":                 {driver.CreateMachineResponse{ProviderID: text(2048)}, false, driver.CreateMachineResponse{ProviderID: text(2048)}},
		"provider ID, too long":       {driver.CreateMachineResponse{ProviderID: text(2049)}, false, driver.CreateMachineResponse{}},
		"node":                        {driver.CreateMachineResponse{ProviderID: "p", NodeName: "node-1"}, false, driver.CreateMachineResponse{ProviderID: "p", NodeName: "node-1"}},
		"node, no label, not needed":  {driver.CreateMachineResponse{ProviderID: "p", NodeName: "node 1"}, false, driver.CreateMachineResponse{ProviderID: "p"}},
		"node, no label":              {driver.CreateMachineResponse{ProviderID: "p", NodeName: "node 1"}, true, driver.CreateMachineResponse{}},
		"failure domain":              {driver.CreateMachineResponse{ProviderID: "p", FailureDomain: text(256)}, false, driver.CreateMachineResponse{ProviderID: "p", FailureDomain: text(256)}},
		"failure domain, too long":    {driver.CreateMachineResponse{ProviderID: "p", FailureDomain: text(257)}, false, driver.CreateMachineResponse{ProviderID: "p"}},
		"failure domain, binary":      {driver.CreateMachineResponse{ProviderID: "p", FailureDomain: "\xff"}, false, driver.CreateMachineResponse{ProviderID: "p"}},
		"last known state":            {driver.CreateMachineResponse{ProviderID: "p", LastKnownState: text(64 << 10)}, false, driver.CreateMachineResponse{ProviderID: "p", LastKnownState: text(64 << 10)}},
		"address, with 10 for a type": {driver.CreateMachineResponse{ProviderID: "p", Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: text(246)}, {Type: corev1.NodeInternalIP, Address: text(247)}}}, false, driver.CreateMachineResponse{ProviderID: "p", Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: text(246)}}}},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *fake.Driver, p *process) {
				d.OnCreate(fake.Always[driver.CreateMachineRequest](&tc.given, nil))
				req := request("m")
				req.NodeExpected = tc.nodeExpected
				result := ask(p.Ensure, req)
				if tc.want.ProviderID == "" {
					is[instance.Failed](t, result)
					return
				}
				got := is[instance.Exists](t, result)
				if got.Instance.ProviderID != tc.want.ProviderID || got.Instance.NodeName != tc.want.NodeName || got.Instance.FailureDomain != tc.want.FailureDomain ||
					len(got.Instance.Addresses) != len(tc.want.Addresses) || got.LastKnownState == nil || *got.LastKnownState != tc.want.LastKnownState {
					t.Errorf("%.400v", got)
				}
			})
		})
	}
}

// TestAbandon_Uninitialized checks that a VM whose initialization failed is returned, and that no VM is returned after
// another failure.
func TestAbandon_Uninitialized(t *testing.T) {
	for method, want := range map[fake.Method]string{fake.InitializeMachine: "Exists", fake.CreateMachine: "Gone"} {
		bubble(t, func(t *testing.T, d *fake.Driver, p *process) {
			d.Fail(method, codes.Unavailable)
			is[instance.Failed](t, ask(p.Ensure, request("m")))
			if got := p.Abandon(keyOf(request("m"))); kind(got) != want {
				t.Errorf("after a failed %s: %+v, want %s", method, got, want)
			}
		})
	}
}

// TestForget_WhileDeleting checks that a forgotten deletion does not count, and that nothing of it is kept.
func TestForget_WhileDeleting(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake.Driver, p *process) {
		req := known("m")
		d.OnDelete(func(context.Context, *driver.DeleteMachineRequest, func() (*driver.DeleteMachineResponse, error)) (*driver.DeleteMachineResponse, error) {
			time.Sleep(time.Second)
			return nil, status.Error(codes.Unavailable, "not now")
		})
		p.Delete(req)
		synctest.Wait()
		p.Forget(keyOf(req))
		if p.Deleting(keyOf(req)) {
			t.Error("it is being deleted")
		}
		time.Sleep(time.Second)
		synctest.Wait()
		is[instance.Pending](t, p.Delete(req)) // a new call begins, without a back-off
	})
}

// TestResetUnavailable_NoFailure checks that a result that is not a failure is kept.
func TestResetUnavailable_NoFailure(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake.Driver, p *process) {
		is[instance.Exists](t, ask(p.Ensure, request("m")))
		p.ResetUnavailable(keyOf(request("m")))
		is[instance.Exists](t, p.Ensure(request("m")))
	})
}

// TestEnsure_IsNotSuperseded checks that another call of Ensure does not cancel a creation.
func TestEnsure_IsNotSuperseded(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake.Driver, p *process) {
		d.OnCreate(func(ctx context.Context, _ *driver.CreateMachineRequest, do func() (*driver.CreateMachineResponse, error)) (*driver.CreateMachineResponse, error) {
			select {
			case <-time.After(time.Minute):
				return do()
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		})
		for range 2 {
			is[instance.Pending](t, ask(p.Ensure, request("m")))
		}
		time.Sleep(2 * time.Minute)
		is[instance.Exists](t, p.Ensure(request("m")))
	})
}

// TestEnsure_TaskIsNotAccepted checks that a call that could not begin is made later.
func TestEnsure_TaskIsNotAccepted(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake.Driver, _ *process) {
		accepting := false
		p := start(t, d, func(o *instance.Options) {
			run := o.Run
			o.Run = func(task func(context.Context)) bool { return accepting && run(task) }
		})
		is[instance.Pending](t, ask(p.Ensure, request("m")))
		accepting = true
		is[instance.Exists](t, ask(p.Ensure, request("m")))
	})
}

// TestEnsure_NoSecret checks that a class without a Secret can be used.
func TestEnsure_NoSecret(t *testing.T) {
	bubble(t, func(t *testing.T, _ *fake.Driver, p *process) {
		req := request("m")
		req.Secret = nil
		is[instance.Exists](t, ask(p.Ensure, req))
	})
}

// TestBackoff_AnotherMethod checks that the back-off restarts if another method fails with the same code and another
// policy applies.
func TestBackoff_AnotherMethod(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake.Driver, p *process) {
		d.Fail(fake.GetMachineStatus, codes.ResourceExhausted)
		d.Fail(fake.CreateMachine, codes.ResourceExhausted)
		wait := retry(ask(p.Ensure, request("m")))
		within(t, "after GetMachineStatus", wait, 3*time.Minute)
		time.Sleep(wait)
		within(t, "after CreateMachine", retry(ask(p.Ensure, request("m"))), 10*time.Minute)
	})
}

// TestOptions checks that a clock and a source of jitter are used if they are given.
func TestOptions(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake.Driver, _ *process) {
		now := time.Date(2040, 1, 1, 0, 0, 0, 0, time.UTC)
		d.Fail(fake.GetMachineStatus, codes.Unavailable)
		p := start(t, d, func(o *instance.Options) {
			o.Clock, o.Chance = testingclock.NewFakeClock(now), func() float64 { return 0.5 }
		})
		if got := is[instance.Pending](t, p.Ensure(request("m"))); !got.Since.Equal(now) {
			t.Errorf("pending since %s", got.Since)
		}
		synctest.Wait()
		if got := retry(p.Ensure(request("m"))); got != time.Second+50*time.Millisecond {
			t.Errorf("retried in %v", got)
		}
	})
}

func TestPending_SilentIn(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	for since, want := range map[time.Time]time.Duration{
		{}:                                       instance.Silence,
		now:                                      instance.Silence,
		now.Add(-instance.Silence):               0,
		now.Add(-instance.Silence - time.Second): -time.Second,
	} {
		if got := (instance.Pending{Since: since, Silence: instance.Silence}).SilentIn(now); got != want {
			t.Errorf("since %s: %v, want %v", since, got, want)
		}
	}
}

// TestUpdate_Rounds checks how often a driver is called for an update, and that its second response counts.
func TestUpdate_Rounds(t *testing.T) {
	type response = driver.UpdateMachineResponse
	for name, tc := range map[string]struct {
		first, second *response
		err           error // of the second call
		want          string
		code          codes.Code
		calls         int
	}{
		"nothing to do":            {first: &response{}, want: "Compared", calls: 1},
		"done":                     {first: &response{Updates: []string{"tags"}}, second: &response{Replacements: []string{"size"}}, want: "Compared", calls: 2},
		"not done":                 {first: &response{Updates: []string{"tags"}}, second: &response{Updates: []string{"tags"}}, want: "Failed", code: codes.Internal, calls: 2},
		"comparison fails":         {first: &response{Updates: []string{"tags"}}, err: status.Error(codes.Unavailable, "not now"), want: "Failed", code: codes.Unavailable, calls: 2},
		"no response":              {want: "Failed", code: codes.Internal, calls: 1},
		"no response to the check": {first: &response{Updates: []string{"tags"}}, want: "Failed", code: codes.Internal, calls: 2},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *fake.Driver, p *process) {
				calls := 0
				d.OnUpdate(func(context.Context, *driver.UpdateMachineRequest, func() (*response, error)) (*response, error) {
					if calls++; calls == 1 {
						return tc.first, nil
					}
					return tc.second, tc.err
				})
				result := ask(p.Update, known("m"))
				if kind(result) != tc.want || calls != tc.calls {
					t.Fatalf("%+v after %d calls, want %s after %d", result, calls, tc.want, tc.calls)
				}
				if failed, ok := result.(instance.Failed); ok && failed.Failure.Code != tc.code {
					t.Errorf("failure %+v", failed.Failure)
				}
			})
		})
	}
}
