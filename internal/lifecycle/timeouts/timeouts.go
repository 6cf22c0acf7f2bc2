// Package timeouts returns how long a machine may take for each phase of its life, and how
// soon a failed driver call is tried again.
package timeouts

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// The defaults of the manager's flags, which are those of MCM.
const (
	DefaultCreation          = 20 * time.Minute
	DefaultHealth            = 10 * time.Minute
	DefaultDrain             = 2 * time.Hour
	DefaultResourceExhausted = 10 * time.Minute
	DefaultMaxEvictRetries   = 360
)

// Source is where the value of a timeout comes from.
type Source int

// The sources.
const (
	// Flag is a flag of the manager.
	Flag Source = iota
	// Spec is a field of the Machine's spec.
	Spec
	// Annotation is an annotation of the Machine.
	Annotation
)

// Timeout is a time limit.
type Timeout struct {
	time.Duration
	Source Source
}

// Ends returns when a timeout that began at a time is over. It begins anew at each of the
// resumed times: time in which no manager worked or an API server was away does not count.
func (t Timeout) Ends(begin time.Time, resumed ...time.Time) time.Time {
	for _, at := range resumed {
		if at.After(begin) {
			begin = at
		}
	}
	return begin.Add(t.Duration)
}

// Creation is the time that the Machine has to join: by its annotation, its spec or the
// flag, in this order. Values that are negative or cannot be parsed are ignored.
func Creation(machine *v1alpha1.Machine, flag time.Duration) Timeout {
	if text, ok := machine.Annotations[v1alpha1.AnnotationKeyMachineEffectiveCreationTimeout]; ok {
		if timeout, err := time.ParseDuration(text); err == nil && timeout >= 0 {
			return Timeout{timeout, Annotation}
		}
	}
	return override(machine, flag, func(c *v1alpha1.MachineConfiguration) *metav1.Duration { return c.MachineCreationTimeout })
}

// Health is the time that an unhealthy Machine has to recover.
func Health(machine *v1alpha1.Machine, flag time.Duration) Timeout {
	return override(machine, flag, func(c *v1alpha1.MachineConfiguration) *metav1.Duration { return c.MachineHealthTimeout })
}

// Drain is the time from the deletion of the Machine until its drain is forced.
func Drain(machine *v1alpha1.Machine, flag time.Duration) Timeout {
	return override(machine, flag, func(c *v1alpha1.MachineConfiguration) *metav1.Duration { return c.MachineDrainTimeout })
}

// override is the Machine's own value if it has one that is not negative.
func override(machine *v1alpha1.Machine, flag time.Duration, field func(*v1alpha1.MachineConfiguration) *metav1.Duration) Timeout {
	if config := machine.Spec.MachineConfiguration; config != nil {
		if own := field(config); own != nil && own.Duration >= 0 {
			return Timeout{own.Duration, Spec}
		}
	}
	return Timeout{flag, Flag}
}

// HealthDisabled reports whether the Machine's spec disables its health timeout.
func HealthDisabled(machine *v1alpha1.Machine) bool {
	config := machine.Spec.MachineConfiguration
	return config != nil && config.DisableHealthTimeout != nil && *config.DisableHealthTimeout
}

// MaxEvictRetries is how often the eviction of a pod may be refused before it is forced.
func MaxEvictRetries(machine *v1alpha1.Machine, flag int32) int32 {
	if config := machine.Spec.MachineConfiguration; config != nil && config.MaxEvictRetries != nil && *config.MaxEvictRetries >= 0 {
		return *config.MaxEvictRetries
	}
	return flag
}
