package instance

import (
	"time"

	"github.com/millwright-dev/millwright/driver/codes"
)

// Method is the driver's method that an answer stems from.
type Method string

// The methods of a driver, and what precedes a creation on our side.
const (
	MethodCreate     Method = "CreateMachine"
	MethodInitialize Method = "InitializeMachine"
	MethodStatus     Method = "GetMachineStatus"
	MethodDelete     Method = "DeleteMachine"
	// MethodPrepare is no call of the driver: what it needs could not be made ready.
	MethodPrepare Method = "Prepare"
)

// Backoff is a range of waiting times: Base after the first failure, doubled with
// each further one up to Max.
type Backoff struct {
	Base, Max time.Duration
}

// after is the time to wait after the given number of failures, at least 1.
func (b Backoff) after(failures int) time.Duration {
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
	// capacity. Zero means 10 minutes.
	ResourceExhausted time.Duration
	// CreationTimeout is the time within which a machine is to come up. Medium
	// back-off of creations stays below a sixth of it. Zero means 20 minutes.
	CreationTimeout time.Duration
}

const (
	defaultResourceExhausted = 10 * time.Minute
	defaultCreationTimeout   = 20 * time.Minute
)

// soon is for failures that pass by themselves.
var soon = Backoff{Base: time.Second, Max: time.Minute}

// slow is for failures that need somebody to change something.
var slow = Backoff{Base: 3 * time.Minute, Max: 30 * time.Minute}

// backoff answers each error code of each method: the table of docs/error-codes.md.
func (p Policy) backoff(method Method, code codes.Code) Backoff {
	switch code {
	case codes.InvalidArgument, codes.AlreadyExists, codes.PermissionDenied, codes.FailedPrecondition, codes.Unimplemented:
		return slow
	case codes.OutOfRange:
		if method == MethodStatus {
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
	case MethodCreate:
		every := p.ResourceExhausted
		if every == 0 {
			every = defaultResourceExhausted
		}
		return Backoff{Base: every, Max: every}
	case MethodInitialize:
		return soon
	default:
		return slow
	}
}

// medium is for failures of which nobody knows whether they pass: most drivers of
// MCM answer Internal to everything.
func (p Policy) medium(method Method) Backoff {
	const base = 5 * time.Second
	if method == MethodDelete {
		return Backoff{Base: base, Max: 10 * time.Minute}
	}
	timeout := p.CreationTimeout
	if timeout == 0 {
		timeout = defaultCreationTimeout
	}
	return Backoff{Base: base, Max: max(base, min(3*time.Minute, timeout/6))}
}
