package outage

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	testingclock "k8s.io/utils/clock/testing"
)

var errAway = errors.New("connection refused")

// TestMonitor checks which failures count as outages, and how often the servers are probed.
func TestMonitor(t *testing.T) {
	const (
		period  = time.Minute
		timeout = 30 * time.Second
	)
	begin := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	// step is the result of probes of the two servers after some time.
	type step struct {
		after           time.Duration
		control, target bool
	}
	type seen struct {
		well bool
		back time.Duration // since begin; 0 without an outage
	}
	cases := map[string]struct {
		steps []step
		want  seen
		asked int
	}{
		"both respond":                        {[]step{{0, true, true}}, seen{well: true}, 1},
		"not probed again within a period":    {[]step{{0, true, true}, {59 * time.Second, false, false}}, seen{well: true}, 1},
		"probed again after a period":         {[]step{{0, true, true}, {period, true, true}}, seen{well: true}, 2},
		"control fails":                       {[]step{{0, false, true}}, seen{}, 1},
		"target fails":                        {[]step{{0, true, false}}, seen{}, 1},
		"both fail":                           {[]step{{0, false, false}}, seen{}, 1},
		"probed again sooner after a failure": {[]step{{0, true, false}, {6 * time.Second, true, true}}, seen{well: true}, 2},
		"back before the timeout":             {[]step{{0, true, false}, {29 * time.Second, true, true}}, seen{well: true}, 2},
		"back after the timeout":              {[]step{{0, true, false}, {30 * time.Second, true, true}}, seen{well: true, back: 30 * time.Second}, 2},
		"control back after the timeout":      {[]step{{0, false, true}, {time.Hour, true, true}}, seen{well: true, back: time.Hour}, 2},
		"one back, the other not":             {[]step{{0, false, false}, {time.Hour, true, false}}, seen{back: time.Hour}, 2},
		"the later recovery counts": {
			[]step{{0, false, false}, {time.Hour, true, false}, {time.Hour, true, true}}, seen{well: true, back: 2 * time.Hour}, 3,
		},
		"two outages": {
			[]step{{0, true, false}, {time.Hour, true, true}, {time.Hour, true, false}, {time.Hour, true, true}}, seen{well: true, back: 3 * time.Hour}, 4,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			clock := testingclock.NewFakeClock(begin)
			var now step
			asked := 0
			respond := func(well *bool) func(context.Context) error {
				return func(context.Context) error {
					asked++
					if *well {
						return nil
					}
					return errAway
				}
			}
			l := &Monitor{clock: newSetting(clock, nil), opts: Options{Clock: clock, Period: period, Timeout: timeout}, servers: []server{{ask: respond(&now.control)}, {ask: respond(&now.target)}}}
			var last state
			for _, now = range tc.steps {
				clock.Step(now.after)
				last = l.observe(t.Context(), l.opts.Period)
			}
			got := seen{well: last.responding}
			if !last.back.IsZero() {
				got.back = last.back.Sub(begin)
			}
			if diff := cmp.Diff(tc.want, got, cmp.AllowUnexported(seen{})); diff != "" {
				t.Errorf("seen (-want +got):\n%s", diff)
			}
			if asked != 2*tc.asked {
				t.Errorf("%d probes, want %d of each server", asked, tc.asked)
			}
			if last.again <= 0 || last.again > period || !last.responding && last.again > timeout {
				t.Errorf("next probe after %v", last.again)
			}
		})
	}
}

// TestMonitor_ProbeDoesNotBlockOthers checks that, while one pass waits for a response, others continue and assume nothing
// about the server.
func TestMonitor_ProbeDoesNotBlockOthers(t *testing.T) {
	clock := testingclock.NewFakeClock(time.Now())
	asked, respond := make(chan struct{}), make(chan struct{})
	l := &Monitor{clock: newSetting(clock, nil), opts: Options{Clock: clock, Period: time.Minute, Timeout: time.Second}, servers: []server{{ask: func(context.Context) error {
		close(asked)
		<-respond
		return nil
	}}}}
	done := make(chan state)
	go func() { done <- l.observe(context.Background(), l.opts.Period) }()
	<-asked
	if l.observe(t.Context(), l.opts.Period).responding {
		t.Error("a server that has not responded yet counts as responding")
	}
	close(respond)
	if got := <-done; !got.responding {
		t.Error("the response is ignored")
	}
}

// TestMonitor_StateIsUnknownDuringProbe checks that the state of a server is unknown while it is probed, whatever the
// last result was.
func TestMonitor_StateIsUnknownDuringProbe(t *testing.T) {
	clock := testingclock.NewFakeClock(time.Now())
	asked, respond := make(chan struct{}), make(chan struct{})
	first := true
	l := &Monitor{clock: newSetting(clock, nil), opts: Options{Clock: clock, Period: time.Minute, Timeout: time.Second}, servers: []server{{ask: func(context.Context) error {
		if first {
			first = false
			return nil
		}
		close(asked)
		<-respond
		return errAway
	}}}}
	if !l.observe(t.Context(), l.opts.Period).responding {
		t.Fatal("a server that responds does not count as responding")
	}
	clock.Step(time.Minute)
	done := make(chan state)
	go func() { done <- l.observe(context.Background(), l.opts.Period) }()
	<-asked
	if got := l.observe(t.Context(), ResponseTimeout); got.responding || got.again != retryDelay {
		t.Errorf("responding: %v, from a response a minute ago; next probe after %v", got.responding, got.again)
	}
	close(respond)
	if got := <-done; got.responding {
		t.Error("a server that does not respond counts as responding")
	}
}

// TestMonitor_ShutdownIsNotAnOutage checks that requests canceled at the end of the process do not count as an
// outage.
func TestMonitor_ShutdownIsNotAnOutage(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	clock := testingclock.NewFakeClock(time.Now())
	l := &Monitor{clock: newSetting(clock, nil), opts: Options{Clock: clock, Period: time.Minute, Timeout: time.Second}, servers: []server{{ask: func(ctx context.Context) error { return ctx.Err() }}}}
	if l.observe(ctx, l.opts.Period); !l.servers[0].failing.IsZero() {
		t.Error("the end of the process counts as an outage")
	}
}
