package outage

import (
	"context"
	"time"

	"github.com/millwright-dev/millwright/internal/lifecycle/timeouts"
)

// Countdown is what is left of a timeout.
type Countdown struct {
	// Left is never positive once the time is over.
	Left time.Duration
	// Wait is when to look again at the latest.
	Wait time.Duration
}

// Over reports whether the time is over.
func (d Countdown) Over() bool { return d.Left <= 0 }

// Countdown counts a timeout from its beginning: time in which no manager worked, or an API
// server was away, does not count.
func (m *Monitor) Countdown(ctx context.Context, begin time.Time, timeout timeouts.Timeout) Countdown {
	counted := m.count(m.Observe(ctx), begin, timeout)
	if counted.Over() {
		return m.count(m.Confirm(ctx), begin, timeout)
	}
	return counted
}

func (m *Monitor) count(seen Report, begin time.Time, timeout timeouts.Timeout) Countdown {
	target := m.opts.Target
	if !seen.Answering || target != nil && !target.Ready() {
		return Countdown{Left: max(timeout.Duration, time.Second), Wait: max(min(timeout.Duration, seen.Again), time.Second)}
	}
	var ready time.Time
	if target != nil {
		ready = target.ReadySince()
	}
	left := timeout.Ends(begin, m.begun, seen.Back, ready).Sub(m.opts.Clock.Now())
	return Countdown{Left: left, Wait: max(min(left, seen.Again), 0)}
}
