// Package timeouts returns how long a machine may take for each phase of its life, and how
// soon a failed driver call is tried again.
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

// The defaults of the manager's flags, which are those of MCM.
const (
	DefaultCreation          = 20 * time.Minute
	DefaultHealth            = 10 * time.Minute
	DefaultDrain             = 2 * time.Hour
	DefaultResourceExhausted = 10 * time.Minute
	DefaultPreserve          = 96 * time.Hour
	DefaultInPlaceUpdate     = 20 * time.Minute
	DefaultMaxEvictRetries   = 360
	// DefaultOutage is after how long an API server that does not respond counts as unreachable; DefaultOutagePeriod is
	// how often that is checked.
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

// Ends returns when a timeout is over that begins at the latest of these times.
func (t Timeout) Ends(begin time.Time, resumed ...time.Time) time.Time {
	latest := slices.MaxFunc(append(resumed, begin), time.Time.Compare)
	return latest.Add(t.Duration)
}

// Creation is the time in which the Machine has to join, by its annotation, its spec or the flag.
// Values that are negative or cannot be parsed are ignored.
func Creation(machine *v1alpha1.Machine, flag time.Duration) Timeout {
	timeout, err := time.ParseDuration(machine.Annotations[v1alpha1.AnnotationKeyMachineEffectiveCreationTimeout])
	if err == nil && timeout >= 0 {
		return Timeout{timeout, Annotation}
	}
	return override(machine, flag, func(c *v1alpha1.MachineConfiguration) *metav1.Duration { return c.MachineCreationTimeout })
}

// Health is the time in which an unhealthy Machine has to recover.
func Health(machine *v1alpha1.Machine, flag time.Duration) Timeout {
	return override(machine, flag, func(c *v1alpha1.MachineConfiguration) *metav1.Duration { return c.MachineHealthTimeout })
}

// Drain is the time from the deletion of the Machine until its drain is forced.
func Drain(machine *v1alpha1.Machine, flag time.Duration) Timeout {
	return override(machine, flag, func(c *v1alpha1.MachineConfiguration) *metav1.Duration { return c.MachineDrainTimeout })
}

// Preserve is how long the Machine is preserved.
func Preserve(machine *v1alpha1.Machine, flag time.Duration) Timeout {
	return override(machine, flag, func(c *v1alpha1.MachineConfiguration) *metav1.Duration { return c.MachinePreserveTimeout })
}

// DrainAnew returns when a drain of a Machine that began at a time began again after its time was over, and whether it
// did. A time in the future is ignored.
func DrainAnew(machine *v1alpha1.Machine, begun, now time.Time) (since time.Time, anew bool) {
	noted, err := time.Parse(time.RFC3339, machine.Annotations[v1alpha1.AnnotationKeyDrainSince])
	if err != nil || noted.After(now) || noted.Before(begun) {
		return begun, false
	}
	return noted, true
}

// InPlaceUpdate is the time in which the node of the Machine has to be updated in place.
func InPlaceUpdate(machine *v1alpha1.Machine, flag time.Duration) Timeout {
	return override(machine, flag, func(c *v1alpha1.MachineConfiguration) *metav1.Duration { return c.MachineInPlaceUpdateTimeout })
}

// override prefers the Machine's value unless it is negative.
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

// MaxEvictRetries is how often the eviction of a pod is tried again before the pod is deleted.
func MaxEvictRetries(machine *v1alpha1.Machine, flag int32) int32 {
	if config := machine.Spec.MachineConfiguration; config != nil && config.MaxEvictRetries != nil && *config.MaxEvictRetries >= 0 {
		return *config.MaxEvictRetries
	}
	return flag
}

// Method is a method of the driver.
type Method string

// The methods of a driver, and what precedes a creation.
const (
	Create     Method = "CreateMachine"
	Initialize Method = "InitializeMachine"
	Status     Method = "GetMachineStatus"
	Delete     Method = "DeleteMachine"
	// Update changes a VM that exists.
	Update Method = "UpdateMachine"
	// Migrate makes a MachineClass of an object of a legacy kind.
	Migrate Method = "GenerateMachineClassForMigration"
	// Prepare makes the bootstrap token and the user data.
	Prepare Method = "Prepare"
)

// Doubling returns a back-off that waits for base after the first failure, and twice as long after
// each further one, up to a limit.
func Doubling(base, limit time.Duration) wait.Backoff {
	return wait.Backoff{Duration: base, Cap: limit, Factor: 2, Steps: math.MaxInt}
}

// Policy is when failed driver calls are tried again.
type Policy struct {
	// ResourceExhausted is the time between two creations that fail for lack of capacity. Zero
	// means DefaultResourceExhausted.
	ResourceExhausted time.Duration
	// CreationTimeout limits the medium back-off of creations to its sixth. Zero means
	// DefaultCreation.
	CreationTimeout time.Duration
}

var (
	// soon is for failures that pass by themselves.
	soon = Doubling(time.Second, time.Minute)
	// slow is for failures that need a change by a user.
	slow = Doubling(3*time.Minute, 30*time.Minute)
)

// Backoff returns the back-off of each error code of each method: the table of
// docs/error-codes.md.
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
	default: // also numbers that are no code
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

// medium is for failures that may pass or not: most drivers of MCM answer Internal to everything.
func (p Policy) medium(method Method) wait.Backoff {
	const base = 5 * time.Second
	if method == Delete {
		return Doubling(base, 10*time.Minute)
	}
	return Doubling(base, max(base, min(3*time.Minute, cmp.Or(p.CreationTimeout, DefaultCreation)/6)))
}
