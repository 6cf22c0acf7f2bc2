// Package timeouts returns how long a machine may take for each phase of its life, and how
// soon a failed driver call is tried again.
package timeouts

import (
	"cmp"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/codes"
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

// Method is a method of the driver, or what precedes a creation.
type Method string

// The methods.
const (
	Create     Method = "CreateMachine"
	Initialize Method = "InitializeMachine"
	Status     Method = "GetMachineStatus"
	Delete     Method = "DeleteMachine"
	// Prepare is no call of the driver: what it needs could not be made ready.
	Prepare Method = "Prepare"
)

// Backoff is a range of waiting times: Base after the first failure, doubled with
// each further one up to Max.
type Backoff struct {
	Base, Max time.Duration
}

// After is the time to wait after the given number of failures, at least 1.
func (b Backoff) After(failures int) time.Duration {
	wait := b.Base
	for range failures - 1 {
		if wait >= b.Max/2 {
			return b.Max
		}
		wait *= 2
	}
	return min(wait, b.Max)
}

// Policy holds the waiting times by which failed calls are tried again.
type Policy struct {
	// ResourceExhausted is the time between two creations that fail for lack of
	// capacity. Zero means DefaultResourceExhausted.
	ResourceExhausted time.Duration
	// CreationTimeout is the time within which a machine is to come up. Medium
	// back-off of creations stays below a sixth of it. Zero means DefaultCreation.
	CreationTimeout time.Duration
}

// soon is for failures that pass by themselves.
var soon = Backoff{Base: time.Second, Max: time.Minute}

// slow is for failures that need somebody to change something.
var slow = Backoff{Base: 3 * time.Minute, Max: 30 * time.Minute}

// Backoff answers each error code of each method: the table of docs/error-codes.md.
func (p Policy) Backoff(method Method, code codes.Code) Backoff {
	switch code {
	case codes.InvalidArgument, codes.AlreadyExists, codes.PermissionDenied, codes.FailedPrecondition, codes.Unimplemented:
		return slow
	case codes.OutOfRange:
		if method == Status {
			return soon
		}
		return slow
	case codes.ResourceExhausted:
		return p.exhausted(method)
	case codes.Internal, codes.DataLoss, codes.Unauthenticated:
		return p.medium(method)
	default: // also numbers that are no code: they count as Unknown
		return soon
	}
}

func (p Policy) exhausted(method Method) Backoff {
	switch method {
	case Create:
		every := cmp.Or(p.ResourceExhausted, DefaultResourceExhausted)
		return Backoff{Base: every, Max: every}
	case Initialize:
		return soon
	default:
		return slow
	}
}

// medium is for failures of which nobody knows whether they pass: most drivers of
// MCM answer Internal to everything.
func (p Policy) medium(method Method) Backoff {
	const base = 5 * time.Second
	if method == Delete {
		return Backoff{Base: base, Max: 10 * time.Minute}
	}
	return Backoff{Base: base, Max: max(base, min(3*time.Minute, cmp.Or(p.CreationTimeout, DefaultCreation)/6))}
}
