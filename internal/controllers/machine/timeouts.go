package machine

import (
	"context"
	"time"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/timeouts"
)

// Defaults, which are those of MCM.
const (
	DefaultHealthTimeout   = timeouts.DefaultHealth
	DefaultDrainTimeout    = timeouts.DefaultDrain
	DefaultMaxEvictRetries = timeouts.DefaultMaxEvictRetries
	DefaultOutageTimeout   = 30 * time.Second
	DefaultOutagePeriod    = time.Minute
)

func (o *Options) setDefaults() {
	or := func(value *time.Duration, otherwise time.Duration) {
		if *value == 0 {
			*value = otherwise
		}
	}
	or(&o.CreationTimeout, timeouts.DefaultCreation)
	or(&o.Health.Timeout, DefaultHealthTimeout)
	or(&o.Health.OutageTimeout, DefaultOutageTimeout)
	or(&o.Health.OutagePeriod, DefaultOutagePeriod)
	or(&o.Drain.Timeout, DefaultDrainTimeout)
	if o.Drain.MaxEvictRetries == 0 {
		o.Drain.MaxEvictRetries = DefaultMaxEvictRetries
	}
}

func (c *Controller) creationTimeout(machine *v1alpha1.Machine) timeouts.Timeout {
	return timeouts.Creation(machine, c.CreationTimeout)
}

func (c *Controller) healthTimeout(machine *v1alpha1.Machine) timeouts.Timeout {
	return timeouts.Health(machine, c.Health.Timeout)
}

func (c *Controller) drainTimeout(machine *v1alpha1.Machine) timeouts.Timeout {
	return timeouts.Drain(machine, c.Drain.Timeout)
}

// countdown is what is left of a timeout.
type countdown struct {
	// left is never positive once the time is over.
	left time.Duration
	// wait is when to look again at the latest.
	wait time.Duration
}

func (d countdown) over() bool { return d.left <= 0 }

// timeLeft counts a timeout from its beginning, or from when the world was last lost
// sight of: time in which no manager worked, or an API server was away, does not count.
func (c *Controller) timeLeft(ctx context.Context, begin time.Time, timeout timeouts.Timeout) countdown {
	counted := c.count(c.lookout.look(ctx), begin, timeout)
	if counted.over() {
		return c.count(c.lookout.confirm(ctx), begin, timeout)
	}
	return counted
}

func (c *Controller) count(seen report, begin time.Time, timeout timeouts.Timeout) countdown {
	if !seen.well || c.Target != nil && !c.Target.Ready() {
		return countdown{left: max(timeout.Duration, time.Second), wait: max(min(timeout.Duration, seen.again), time.Second)}
	}
	var ready time.Time
	if c.Target != nil {
		ready = c.Target.ReadySince()
	}
	left := timeout.Ends(begin, c.begun, seen.back, ready).Sub(c.Clock.Now())
	return countdown{left: left, wait: max(min(left, seen.again), 0)}
}

// creationTimeLeft is how long the Machine may still take to join. One that is Failed has
// had its time: a restart or an outage does not give it any more, a longer timeout does.
func (c *Controller) creationTimeLeft(ctx context.Context, s *scope) countdown {
	begin, timeout := s.machine.CreationTimestamp.Time, c.creationTimeout(s.machine)
	if s.machine.Status.CurrentStatus.Phase == v1alpha1.MachineFailed {
		if left := timeout.Ends(begin).Sub(s.now); left <= 0 {
			return countdown{left: left}
		}
	}
	return c.timeLeft(ctx, begin, timeout)
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
