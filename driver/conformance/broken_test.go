package conformance_test

import (
	"context"
	"maps"
	"slices"
	"testing"

	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/conformance"
	"github.com/millwright-dev/millwright/driver/status"
)

// TestRun_BrokenDriverFailsOneRule: a driver that breaks one rule fails the check of that rule and of no other.
func TestRun_BrokenDriverFailsOneRule(t *testing.T) {
	broken := map[int]func(*world, *patched){}
	for _, some := range []map[int]func(*world, *patched){brokenCreations, brokenRequests, brokenDeletions, brokenResponses, brokenLists, brokenOptions, brokenUpdates, brokenErrors} {
		maps.Copy(broken, some)
	}
	for _, rule := range conformance.Rules() {
		if rule.Unchecked != "" {
			continue
		}
		breakIt := broken[rule.Number]
		if breakIt == nil {
			t.Errorf("no broken driver covers %s", rule.Name())
			continue
		}
		t.Run(rule.Name(), func(t *testing.T) {
			report := check(t, rule.Number >= 56 && rule.Number <= 60, func(w *world) full {
				return patch(w, func(p *patched) { breakIt(w, p) })
			})
			var failed []string
			for _, result := range report.Results {
				if result.Outcome == conformance.Failed {
					failed = append(failed, result.Rule)
				}
				if result.Outcome == conformance.Failed && result.Rule != rule.ID() {
					t.Errorf("%+v", result)
				}
			}
			if !slices.Contains(failed, rule.ID()) {
				t.Errorf("the broken driver fails %v, want only %s", failed, rule.ID())
			}
		})
	}
}

func failing(code codes.Code) error { return status.Error(code, "this driver is broken") }

// leak creates a VM that belongs to no machine.
func (w *world) leak() {
	if err := w.add("ns", "leaked"); err != nil {
		w.t.Error(err)
	}
}

func ended(ctx context.Context) error {
	if ctx.Err() == context.DeadlineExceeded {
		return failing(codes.DeadlineExceeded)
	}
	return failing(codes.Canceled)
}
