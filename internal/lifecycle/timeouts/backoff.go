package timeouts

import (
	"cmp"
	"time"

	"github.com/millwright-dev/millwright/driver/codes"
)

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
