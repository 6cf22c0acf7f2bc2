// Package timeouts returns the timeouts of a machine's lifecycle phases, and how soon failed driver calls are
// retried.
package timeouts

import (
	"cmp"
	"math"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/codes"
)

// The defaults of the manager's flags, as in MCM.
const (
	DefaultCreation          = 20 * time.Minute
	DefaultHealth            = 10 * time.Minute
	DefaultDrain             = 2 * time.Hour
	DefaultResourceExhausted = 10 * time.Minute
	DefaultPreserve          = 96 * time.Hour
	DefaultInPlaceUpdate     = 20 * time.Minute
	DefaultMaxEvictRetries   = 360
	// DefaultOutage is how long an API server must be unresponsive to count as unavailable. DefaultOutagePeriod
	// is how often that is checked.
	DefaultOutage       = 30 * time.Second
	DefaultOutagePeriod = time.Minute
)

// Source is where the value of a timeout comes from.
type Source int

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

// Deadline returns when the timeout expires if it starts at the latest of the given times.
func (t Timeout) Deadline(begin time.Time, resumed ...time.Time) time.Time {
	latest := slices.MaxFunc(append(resumed, begin), time.Time.Compare)
	return latest.Add(t.Duration)
}

// Creation returns the time within which the Machine must join, from its annotation, its spec or the flag.
// Negative and invalid values are ignored.
func Creation(machine *v1alpha1.Machine, flag time.Duration) Timeout {
	timeout, err := time.ParseDuration(machine.Annotations[v1alpha1.AnnotationKeyMachineEffectiveCreationTimeout])
	if err == nil && timeout >= 0 {
		return Timeout{timeout, Annotation}
	}
	return override(machine, flag, func(c *v1alpha1.MachineConfiguration) *metav1.Duration { return c.MachineCreationTimeout })
}

// Health returns the time within which an unhealthy Machine must recover.
func Health(machine *v1alpha1.Machine, flag time.Duration) Timeout {
	return override(machine, flag, func(c *v1alpha1.MachineConfiguration) *metav1.Duration { return c.MachineHealthTimeout })
}

// Drain returns the time from the deletion of the Machine until its drain is forced.
func Drain(machine *v1alpha1.Machine, flag time.Duration) Timeout {
	return override(machine, flag, func(c *v1alpha1.MachineConfiguration) *metav1.Duration { return c.MachineDrainTimeout })
}

// Preserve returns how long the Machine is preserved.
func Preserve(machine *v1alpha1.Machine, flag time.Duration) Timeout {
	return override(machine, flag, func(c *v1alpha1.MachineConfiguration) *metav1.Duration { return c.MachinePreserveTimeout })
}

// DrainRestarted returns when the drain of a Machine was restarted after its timeout, or else when it began. It
// also returns whether the drain was restarted. A restart time in the future is ignored.
func DrainRestarted(machine *v1alpha1.Machine, begun, now time.Time) (since time.Time, restarted bool) {
	noted, err := time.Parse(time.RFC3339, machine.Annotations[v1alpha1.AnnotationKeyDrainSince])
	if err != nil || noted.After(now) || noted.Before(begun) {
		return begun, false
	}
	return noted, true
}

// InPlaceUpdate returns the time within which the node of the Machine must be updated in place.
func InPlaceUpdate(machine *v1alpha1.Machine, flag time.Duration) Timeout {
	return override(machine, flag, func(c *v1alpha1.MachineConfiguration) *metav1.Duration { return c.MachineInPlaceUpdateTimeout })
}

// override returns the Machine's value if it has one that is not negative, or else the flag.
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

// MaxEvictRetries returns how often the eviction of a Pod is retried before the Pod is deleted.
func MaxEvictRetries(machine *v1alpha1.Machine, flag int32) int32 {
	if config := machine.Spec.MachineConfiguration; config != nil && config.MaxEvictRetries != nil && *config.MaxEvictRetries >= 0 {
		return *config.MaxEvictRetries
	}
	return flag
}

// Method is a method of the driver.
type Method string

// The methods of a driver, and the preparation of a creation.
const (
	Create     Method = "CreateMachine"
	Initialize Method = "InitializeMachine"
	Status     Method = "GetMachineStatus"
	Delete     Method = "DeleteMachine"
	// Update updates an existing VM.
	Update Method = "UpdateMachine"
	// Migrate generates a MachineClass from an object of a legacy kind.
	Migrate Method = "GenerateMachineClassForMigration"
	// Prepare prepares the bootstrap token and the user data.
	Prepare Method = "Prepare"
)

// Doubling returns a back-off that waits for base after the first failure, and twice as long after each further
// failure, up to a limit.
func Doubling(base, limit time.Duration) wait.Backoff {
	return wait.Backoff{Duration: base, Cap: limit, Factor: 2, Steps: math.MaxInt}
}

// Policy determines when failed driver calls are retried.
type Policy struct {
	// ResourceExhausted is the interval between creations that fail for lack of capacity. Zero means
	// DefaultResourceExhausted.
	ResourceExhausted time.Duration
	// CreationTimeout limits the medium back-off of creations to one sixth of its value. Zero means
	// DefaultCreation.
	CreationTimeout time.Duration
}

var (
	// soon is for failures that usually resolve themselves.
	soon = Doubling(time.Second, time.Minute)
	// slow is for failures that require a change by a user.
	slow = Doubling(3*time.Minute, 30*time.Minute)
)

// Backoff returns the back-off for an error code of a method, according to the table in docs/reference/error-codes.md.
func (p Policy) Backoff(method Method, code codes.Code) wait.Backoff {
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
	default: // including unknown numbers
		return soon
	}
}

func (p Policy) exhausted(method Method) wait.Backoff {
	switch method {
	case Create:
		every := cmp.Or(p.ResourceExhausted, DefaultResourceExhausted)
		return Doubling(every, every)
	case Initialize:
		return soon
	default:
		return slow
	}
}

// medium is for failures that may or may not resolve themselves: most MCM drivers return Internal for every
// error.
func (p Policy) medium(method Method) wait.Backoff {
	const base = 5 * time.Second
	if method == Delete {
		return Doubling(base, 10*time.Minute)
	}
	return Doubling(base, max(base, min(3*time.Minute, cmp.Or(p.CreationTimeout, DefaultCreation)/6)))
}
