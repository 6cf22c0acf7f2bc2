package instance_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/fake"
	"github.com/millwright-dev/millwright/driver/status"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
)

// failing returns a request for a machine whose creation failed for an earlier process.
func failing(name string) instance.Request {
	req := request(name)
	req.Machine.Status.CurrentStatus.Phase = v1alpha1.MachineCrashLoopBackOff
	return req
}

// failingToGo returns a request for a machine whose deletion failed for an earlier process.
func failingToGo(name string) instance.Request {
	req := known(name)
	req.Machine.Status.CurrentStatus.Phase = v1alpha1.MachineTerminating
	req.Machine.Status.LastOperation.State = v1alpha1.MachineStateFailed
	return req
}

func name(i int) string { return string(rune('a'+i/26)) + string(rune('a'+i%26)) }

// maxPrompt is how many of many failing machines are retried immediately.
const many, maxPrompt = 200, 10

func TestSpread_FailingMachinesAfterTakeover(t *testing.T) {
	for goal, of := range map[string]func(string) instance.Request{"creation": failing, "deletion": failingToGo} {
		t.Run(goal, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *fake.Driver, p *process) {
				call := p.ensure
				if goal == "deletion" {
					call = p.remove
				}
				begin := time.Now()
				for i := range many {
					call(of(name(i)))
				}
				// The woken caller calls again, like a controller.
				for done := 0; done < many; {
					req := of((<-p.wake).Name)
					if kind(call(req)) != "Pending" {
						done++
					}
				}
				checkSpread(t, d, begin)
			})
		})
	}
}

// checkSpread expects two calls for each machine, either immediately or after up to half a minute, with about
// as many calls in each half of that time.
func checkSpread(t *testing.T, d *fake.Driver, begin time.Time) {
	t.Helper()
	var prompt, first, second int
	calls := callsOf(d)
	for _, call := range calls {
		switch after := call.Began.Sub(begin); {
		case after == 0:
			prompt++
		case after <= 15*time.Second:
			first++
		case after <= 30*time.Second:
			second++
		default:
			t.Errorf("a call came after %v", after)
		}
	}
	if prompt != 2*maxPrompt || prompt+first+second != 2*many {
		t.Errorf("%d of %d calls immediately, want %d of %d", prompt, len(calls), 2*maxPrompt, 2*many)
	}
	if first < many/2 || second < many/2 {
		t.Errorf("%d calls in the first half and %d in the second, want about the same", first, second)
	}
}

func TestSpread_HealthyMachinesAreNotDelayed(t *testing.T) {
	refusing := answering(status.Error(codes.Unauthenticated, "wrong password"))
	cases := map[string]struct {
		reason string
		// given is what happens before the calls that must be made immediately.
		given func(d *fake.Driver, p *process)
		asked func(p *process) any
	}{
		"new":   {"it has not failed yet", nil, func(p *process) any { return ask(p.Ensure, request("m")) }},
		"known": {"there is no record of a failure", nil, func(p *process) any { return ask(p.Delete, known("m")) }},
		"later": {"the takeover is complete", nil, func(p *process) any {
			time.Sleep(time.Minute)
			return ask(p.Ensure, failing("m"))
		}},
		"deleted": {"a delayed creation does not delay a deletion", nil, func(p *process) any {
			holdBack(p, "m")
			return ask(p.Delete, failing("m"))
		}},
		"repaired": {"the request changed", nil, func(p *process) any {
			holdBack(p, "m")
			req := failing("m")
			req.Machine.Generation++
			return ask(p.Ensure, req)
		}},
		"deleted with a new secret": {
			"the deletion has not failed yet",
			func(d *fake.Driver, p *process) { d.OnStatus(refusing); ask(p.Ensure, request("m")) },
			func(p *process) any { return ask(p.Delete, repaired("m")) },
		},
		"existing with a new secret": {
			"nothing has failed",
			func(d *fake.Driver, p *process) { d.OnStatus(found); ask(p.Ensure, request("m")) },
			func(p *process) any { return ask(p.Ensure, repaired("m")) },
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *fake.Driver, p *process) {
				if tc.given != nil {
					tc.given(d, p)
				}
				fillPrompt(p)
				if kind(tc.asked(p)) == "Pending" {
					t.Errorf("%s, but it was delayed", tc.reason)
				}
			})
		})
	}
}

// fillPrompt uses all calls that are made immediately.
func fillPrompt(p *process) {
	for i := range 50 {
		p.Ensure(failing(name(i)))
	}
	synctest.Wait()
}

// holdBack makes a call for a failing machine that is delayed.
func holdBack(p *process, name string) {
	if kind(ask(p.Ensure, failing(name))) != "Pending" {
		panic("the test's machine is not delayed")
	}
}

// repaired returns a request for a machine whose Secret was corrected.
func repaired(name string) instance.Request {
	req := request(name)
	req.Secret.Data["password"] = []byte("right")
	return req
}

func TestSpread_ChangeOfSharedSecret(t *testing.T) {
	const machines = 100
	bubble(t, func(t *testing.T, d *fake.Driver, p *process) {
		d.OnStatus(answering(status.Error(codes.Unauthenticated, "wrong password")))
		for i := range machines {
			ask(p.Ensure, request(name(i)))
		}
		// The Secret is corrected, at first with a wrong value.
		for _, password := range []string{"wrong", "right"} {
			if password == "right" {
				d.OnStatus(found)
			}
			time.Sleep(time.Hour)
			for len(p.wake) > 0 {
				<-p.wake
			}
			made(t, d)
			tries := func(name string) instance.Request {
				req := request(name)
				req.Secret.Data["password"] = []byte(password)
				return req
			}
			begin := time.Now()
			for i := range machines {
				p.Ensure(tries(name(i)))
			}
			synctest.Wait()
			if n := len(made(t, d)); n != maxPrompt {
				t.Errorf("%s: %d calls immediately, want %d", password, n, maxPrompt)
			}
			for done := 0; done < machines; {
				if kind(p.Ensure(tries((<-p.wake).Name))) != "Pending" {
					done++
				}
			}
			if took := time.Since(begin); took > 30*time.Second {
				t.Errorf("%s: it took %v until all were retried", password, took)
			}
		}
	})
}
