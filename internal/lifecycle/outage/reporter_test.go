package outage

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// joined is a Target whose readiness tests set.
type joined struct {
	Target
	ready bool
}

func (j *joined) Client() client.Client { return nil }
func (j *joined) Ready() bool           { return j.ready }

// TestReporter checks what a monitoring system sees that scrapes every half minute, and how many requests to
// the API servers this causes.
func TestReporter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var control, target atomic.Bool // whether the server is unavailable
		var asked atomic.Int32
		ask := func(away *atomic.Bool) func(context.Context) error {
			return func(context.Context) error {
				asked.Add(1)
				if away.Load() {
					return errAway
				}
				return nil
			}
		}
		nodes := &joined{ready: true}
		m := &Monitor{
			clock:   newSetting(clock.RealClock{}, nil),
			opts:    Options{Clock: clock.RealClock{}, Period: time.Minute, Timeout: 30 * time.Second, Target: nodes},
			servers: []server{{ask: ask(&control)}, {ask: ask(&target)}},
		}
		r := NewReporter()
		go func() { _ = r.Start(t.Context()) }()
		look := func() bool {
			frozen := r.Frozen()
			synctest.Wait()
			time.Sleep(30 * time.Second)
			return frozen
		}

		if look() || asked.Load() > 0 {
			t.Error("frozen before the first pass and before the servers were probed")
		}
		var none *Reporter
		none.Use(m) // which reports nothing
		r.Use(m)
		for range 5 {
			if look() {
				t.Error("frozen while both servers respond")
			}
		}
		if n := asked.Load(); n != 2*3 {
			t.Errorf("%d requests in 150 seconds, want 6: two in each minute", n)
		}
		for name, away := range map[string]*atomic.Bool{"control": &control, "target": &target} {
			away.Store(true)
			look()
			look()
			if !look() {
				t.Errorf("not frozen while %s is unavailable", name)
			}
			away.Store(false)
			look()
			if look() {
				t.Errorf("still frozen although %s is back", name)
			}
		}
		nodes.ready = false
		if !look() {
			t.Error("not frozen while the node cache is not filled")
		}
	})
}
