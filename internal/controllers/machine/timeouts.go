package machine

import (
	"context"
	"time"

	"k8s.io/utils/ptr"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// Defaults, which are those of MCM.
const (
	DefaultCreationTimeout = 20 * time.Minute
	DefaultHealthTimeout   = 10 * time.Minute
	DefaultDrainTimeout    = 2 * time.Hour
	DefaultMaxEvictRetries = 360
	DefaultOutageTimeout   = 30 * time.Second
	DefaultOutagePeriod    = time.Minute
)

func (o *Options) setDefaults() {
	or := func(value *time.Duration, otherwise time.Duration) {
		if *value == 0 {
			*value = otherwise
		}
	}
	or(&o.CreationTimeout, DefaultCreationTimeout)
	or(&o.Health.Timeout, DefaultHealthTimeout)
	or(&o.Health.OutageTimeout, DefaultOutageTimeout)
	or(&o.Health.OutagePeriod, DefaultOutagePeriod)
	or(&o.Drain.Timeout, DefaultDrainTimeout)
	if o.Drain.MaxEvictRetries == 0 {
		o.Drain.MaxEvictRetries = DefaultMaxEvictRetries
	}
}

// creationTimeout is the time that the Machine has to join: by its annotation, its spec
// or the flag, in this order. What is not a time to wait for is passed over.
func (c *Controller) creationTimeout(machine *v1alpha1.Machine) time.Duration {
	if text, ok := machine.Annotations[v1alpha1.AnnotationKeyMachineEffectiveCreationTimeout]; ok {
		if timeout, err := time.ParseDuration(text); err == nil && timeout >= 0 {
			return timeout
		}
	}
	return override(machine, func(c *v1alpha1.MachineConfiguration) *metav1.Duration { return c.MachineCreationTimeout }, c.CreationTimeout)
}

func (c *Controller) healthTimeout(machine *v1alpha1.Machine) time.Duration {
	return override(machine, func(c *v1alpha1.MachineConfiguration) *metav1.Duration { return c.MachineHealthTimeout }, c.Health.Timeout)
}

func (c *Controller) drainTimeout(machine *v1alpha1.Machine) time.Duration {
	return override(machine, func(c *v1alpha1.MachineConfiguration) *metav1.Duration { return c.MachineDrainTimeout }, c.Drain.Timeout)
}

func (c *Controller) maxEvictRetries(machine *v1alpha1.Machine) int32 {
	if config := machine.Spec.MachineConfiguration; config != nil && config.MaxEvictRetries != nil && *config.MaxEvictRetries >= 0 {
		return *config.MaxEvictRetries
	}
	return c.Drain.MaxEvictRetries
}

// override is the Machine's own word if it has one that makes sense.
func override(machine *v1alpha1.Machine, field func(*v1alpha1.MachineConfiguration) *metav1.Duration, otherwise time.Duration) time.Duration {
	if config := machine.Spec.MachineConfiguration; config != nil {
		if own := field(config); own != nil && own.Duration >= 0 {
			return own.Duration
		}
	}
	return otherwise
}

// neverTimesOut reports whether somebody switched the health timeout off for the Machine.
func neverTimesOut(machine *v1alpha1.Machine) bool {
	config := machine.Spec.MachineConfiguration
	return config != nil && ptr.Deref(config.DisableHealthTimeout, false)
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
func (c *Controller) timeLeft(ctx context.Context, begin time.Time, timeout time.Duration) countdown {
	counted := c.count(c.lookout.look(ctx), begin, timeout)
	if counted.over() {
		return c.count(c.lookout.confirm(ctx), begin, timeout)
	}
	return counted
}

func (c *Controller) count(seen report, begin time.Time, timeout time.Duration) countdown {
	if !seen.well || c.Target != nil && !c.Target.Ready() {
		return countdown{left: max(timeout, time.Second), wait: max(min(timeout, seen.again), time.Second)}
	}
	begin = later(later(begin, c.begun), seen.back)
	if c.Target != nil {
		begin = later(begin, c.Target.ReadySince())
	}
	left := begin.Add(timeout).Sub(c.Clock.Now())
	return countdown{left: left, wait: max(min(left, seen.again), 0)}
}

// creationTimeLeft is how long the Machine may still take to join. One that is Failed has
// had its time: a restart or an outage does not give it any more, a longer timeout does.
func (c *Controller) creationTimeLeft(ctx context.Context, s *scope) countdown {
	begin, timeout := s.machine.CreationTimestamp.Time, c.creationTimeout(s.machine)
	if s.machine.Status.CurrentStatus.Phase == v1alpha1.MachineFailed {
		if left := begin.Add(timeout).Sub(s.now); left <= 0 {
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
