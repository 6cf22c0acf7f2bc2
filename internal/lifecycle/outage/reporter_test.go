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

// joined is a Target that can be not ready.
type joined struct {
	Target
	ready bool
}

func (j *joined) Client() client.Client { return nil }
func (j *joined) Ready() bool           { return j.ready }

// TestReporter: what a monitoring system sees that looks every half minute, and how often the API
// servers are asked for that.
func TestReporter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var control, target atomic.Bool // whether it is away
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
			t.Error("it is frozen before a pass has counted anything, or servers were asked")
		}
		var nobody *Reporter
		nobody.Use(m) // where nothing is reported
		r.Use(m)
		for range 5 {
			if look() {
				t.Error("it is frozen while both answer")
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
				t.Errorf("it is not frozen while %s is away", name)
			}
			away.Store(false)
			look()
			if look() {
				t.Errorf("it is frozen although %s is back", name)
			}
		}
		nodes.ready = false
		if !look() {
			t.Error("it is not frozen while the nodes are not known")
		}
	})
}
