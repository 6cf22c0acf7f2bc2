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

// TestMonitor: which failures are outages, and how often is asked.
func TestMonitor(t *testing.T) {
	const (
		period  = time.Minute
		timeout = 30 * time.Second
	)
	begin := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	// step is what the two servers answer when they are asked after some time.
	type step struct {
		after           time.Duration
		control, target bool
	}
	type seen struct {
		well bool
		back time.Duration // since begin; 0 if nobody was away
	}
	cases := map[string]struct {
		steps []step
		want  seen
		asked int
	}{
		"all answer":                     {[]step{{0, true, true}}, seen{well: true}, 1},
		"not asked within a period":      {[]step{{0, true, true}, {59 * time.Second, false, false}}, seen{well: true}, 1},
		"asked after a period":           {[]step{{0, true, true}, {period, true, true}}, seen{well: true}, 2},
		"control fails":                  {[]step{{0, false, true}}, seen{}, 1},
		"target fails":                   {[]step{{0, true, false}}, seen{}, 1},
		"both fail":                      {[]step{{0, false, false}}, seen{}, 1},
		"one that fails is asked sooner": {[]step{{0, true, false}, {6 * time.Second, true, true}}, seen{well: true}, 2},
		"back before the timeout":        {[]step{{0, true, false}, {29 * time.Second, true, true}}, seen{well: true}, 2},
		"back after the timeout":         {[]step{{0, true, false}, {30 * time.Second, true, true}}, seen{well: true, back: 30 * time.Second}, 2},
		"control back after it":          {[]step{{0, false, true}, {time.Hour, true, true}}, seen{well: true, back: time.Hour}, 2},
		"one back, the other not":        {[]step{{0, false, false}, {time.Hour, true, false}}, seen{back: time.Hour}, 2},
		"the later one counts": {
			[]step{{0, false, false}, {time.Hour, true, false}, {time.Hour, true, true}}, seen{well: true, back: 2 * time.Hour}, 3,
		},
		"away a second time": {
			[]step{{0, true, false}, {time.Hour, true, true}, {time.Hour, true, false}, {time.Hour, true, true}}, seen{well: true, back: 3 * time.Hour}, 4,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			clock := testingclock.NewFakeClock(begin)
			var now step
			asked := 0
			answer := func(well *bool) func(context.Context) error {
				return func(context.Context) error {
					asked++
					if *well {
						return nil
					}
					return errAway
				}
			}
			l := &Monitor{clock: newSetting(clock, nil), opts: Options{Clock: clock, Period: period, Timeout: timeout}, servers: []server{{ask: answer(&now.control)}, {ask: answer(&now.target)}}}
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
				t.Errorf("%d questions, want %d to each server", asked, tc.asked)
			}
			if last.again <= 0 || last.again > period || !last.responding && last.again > timeout {
				t.Errorf("to be looked at again after %v", last.again)
			}
		})
	}
}

// TestAskingHoldsNobodyUp: while one pass waits for answers, others go on, and take
// nothing for granted.
func TestAskingHoldsNobodyUp(t *testing.T) {
	clock := testingclock.NewFakeClock(time.Now())
	asked, answer := make(chan struct{}), make(chan struct{})
	l := &Monitor{clock: newSetting(clock, nil), opts: Options{Clock: clock, Period: time.Minute, Timeout: time.Second}, servers: []server{{ask: func(context.Context) error {
		close(asked)
		<-answer
		return nil
	}}}}
	done := make(chan state)
	go func() { done <- l.observe(context.Background(), l.opts.Period) }()
	<-asked
	if l.observe(t.Context(), l.opts.Period).responding {
		t.Error("a server is well that has not answered yet")
	}
	close(answer)
	if got := <-done; !got.responding {
		t.Error("an answer is not taken")
	}
}

// TestNothingIsConfirmedMeanwhile: what is being asked for is not known, whatever the
// last answer was.
func TestNothingIsConfirmedMeanwhile(t *testing.T) {
	clock := testingclock.NewFakeClock(time.Now())
	asked, answer := make(chan struct{}), make(chan struct{})
	first := true
	l := &Monitor{clock: newSetting(clock, nil), opts: Options{Clock: clock, Period: time.Minute, Timeout: time.Second}, servers: []server{{ask: func(context.Context) error {
		if first {
			first = false
			return nil
		}
		close(asked)
		<-answer
		return errAway
	}}}}
	if !l.observe(t.Context(), l.opts.Period).responding {
		t.Fatal("a server that answers is not well")
	}
	clock.Step(time.Minute)
	done := make(chan state)
	go func() { done <- l.observe(context.Background(), l.opts.Period) }()
	<-asked
	if got := l.observe(t.Context(), ResponseTimeout); got.responding || got.again != retryDelay {
		t.Errorf("well: %v, by an answer of a minute ago; to be looked at again after %v", got.responding, got.again)
	}
	close(answer)
	if got := <-done; got.responding {
		t.Error("a server is well that does not answer")
	}
}

// TestAnEndingProcessIsNoOutage: that a process ends is no outage.
func TestAnEndingProcessIsNoOutage(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	clock := testingclock.NewFakeClock(time.Now())
	l := &Monitor{clock: newSetting(clock, nil), opts: Options{Clock: clock, Period: time.Minute, Timeout: time.Second}, servers: []server{{ask: func(ctx context.Context) error { return ctx.Err() }}}}
	if l.observe(ctx, l.opts.Period); !l.servers[0].failing.IsZero() {
		t.Error("it is taken for one")
	}
}
