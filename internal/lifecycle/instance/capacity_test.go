package instance_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/fake"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
)

// capacity is scripted, and records its calls.
type capacity struct {
	spent, untouched bool
	fallback         instance.Fallback
	sooner           time.Duration
	asking           int
	asked            []codes.Code
}

func (c *capacity) Spent() (spent, untouched bool) { return c.spent, c.untouched }

func (c *capacity) Asking() { c.asking++ }

func (c *capacity) Asked(code codes.Code) (instance.Fallback, time.Duration) {
	c.asked = append(c.asked, code)
	return c.fallback, c.sooner
}

func TestCapacity_OverridesNodeResources(t *testing.T) {
	type calls = []fake.Method
	for name, tc := range map[string]struct {
		given    capacity
		creation codes.Code
		remains  bool // a VM is left after the cleanup
		want     string
		code     codes.Code
		fallback instance.Fallback
		asked    []codes.Code
		retry    time.Duration
		calls    calls
	}{
		"there is some": {
			want: "Exists", asked: []codes.Code{codes.OK},
			calls: calls{fake.GetMachineStatus, fake.CreateMachine},
		},
		"known to be exhausted, class never tried": {
			given: capacity{spent: true, untouched: true}, want: "Failed", code: codes.ResourceExhausted, fallback: instance.FallsBack, retry: 10 * time.Minute,
			calls: calls{fake.GetMachineStatus},
		},
		"known to be exhausted": {
			given: capacity{spent: true}, want: "Failed", code: codes.ResourceExhausted, fallback: instance.FallsBack, retry: 10 * time.Minute,
			calls: calls{fake.GetMachineStatus, fake.DeleteMachine, fake.GetMachineStatus},
		},
		"known to be exhausted, resources remain": {
			given: capacity{spent: true}, remains: true, want: "Failed", code: codes.Aborted, retry: time.Second,
			calls: calls{fake.GetMachineStatus, fake.DeleteMachine, fake.GetMachineStatus},
		},
		"exhausted, falls back": {
			given: capacity{fallback: instance.FallsBack}, creation: codes.ResourceExhausted, asked: []codes.Code{codes.ResourceExhausted},
			want: "Failed", code: codes.ResourceExhausted, fallback: instance.FallsBack, retry: 10 * time.Minute,
			calls: calls{fake.GetMachineStatus, fake.CreateMachine, fake.DeleteMachine, fake.GetMachineStatus},
		},
		"exhausted, resources remain": {
			given: capacity{fallback: instance.FallsBack}, creation: codes.ResourceExhausted, asked: []codes.Code{codes.ResourceExhausted},
			remains: true, want: "Failed", code: codes.Aborted, retry: time.Second,
			calls: calls{fake.GetMachineStatus, fake.CreateMachine, fake.DeleteMachine, fake.GetMachineStatus},
		},
		"exhausted, falls back later": {
			given: capacity{fallback: instance.FallsBackLater, sooner: 7 * time.Second}, creation: codes.ResourceExhausted, asked: []codes.Code{codes.ResourceExhausted},
			want: "Failed", code: codes.ResourceExhausted, fallback: instance.FallsBackLater, retry: 7 * time.Second,
			calls: calls{fake.GetMachineStatus, fake.CreateMachine},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newDriver()
				if tc.creation != codes.OK {
					d.Fail(fake.CreateMachine, tc.creation)
				}
				if tc.remains {
					d.OnStatus(foundAfterDeletion(d))
				}
				p := start(t, d, func(o *instance.Options) { o.Chance = func() float64 { return 0 } })
				req := request("m")
				req.Capacity = &tc.given
				result := ask(p.Ensure, req)
				if kind(result) != tc.want || retry(result) != tc.retry {
					t.Fatalf("%+v, retried in %v; want %s, %v", result, retry(result), tc.want, tc.retry)
				}
				if failed, ok := result.(instance.Failed); ok && (failed.Failure.Code != tc.code || failed.Fallback != tc.fallback) {
					t.Errorf("%v with fallback %v, want %v with %v", failed.Failure, failed.Fallback, tc.code, tc.fallback)
				}
				if !slices.Equal(tc.given.asked, tc.asked) || tc.given.asking != len(tc.asked) {
					t.Errorf("%d creations began, and the codes are %v; want %v", tc.given.asking, tc.given.asked, tc.asked)
				}
				equalCalls(t, d, tc.calls...)
			})
		})
	}
}
