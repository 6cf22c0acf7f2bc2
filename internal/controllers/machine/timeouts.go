package machine

import (
	"context"
	"time"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/outage"
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

// creationTimeLeft is how long the Machine may still take to join. One that is Failed has
// had its time: a restart or an outage does not give it any more, a longer timeout does.
func (c *Controller) creationTimeLeft(ctx context.Context, s *scope) outage.Countdown {
	begin, timeout := s.machine.CreationTimestamp.Time, c.creationTimeout(s.machine)
	if s.machine.Status.CurrentStatus.Phase == v1alpha1.MachineFailed {
		if left := timeout.Ends(begin).Sub(s.now); left <= 0 {
			return outage.Countdown{Left: left}
		}
	}
	return c.outages.Countdown(ctx, begin, timeout)
}
