package instance

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/instrument"
)

// EnsureResult is a Pending, Located, Exists, Lost or Failed.
type EnsureResult interface{ ensureResult() }

// DeleteResult is a Pending, Located, Gone, Remains or Failed.
type DeleteResult interface{ deleteResult() }

// FindResult is a Pending, Exists, Gone or Failed.
type FindResult interface{ findResult() }

// UpdateResult is a Pending, Compared or Failed.
type UpdateResult interface{ updateResult() }

// Pending means that a call is in progress or delayed. The engine wakes the caller when there is a result.
type Pending struct {
	// Since is when the call in progress began, which may be for another goal. It is zero if no call is in
	// progress.
	Since time.Time
	// Silence is the time after which the driver counts as unresponsive, because it ignores the deadlines of its
	// calls. It is half as long again as Options.CallTimeout.
	Silence time.Duration
}

// Silence is Pending.Silence with the default of Options.CallTimeout.
const Silence = instrument.DefaultTimeout + instrument.DefaultTimeout/2

// SilentIn returns the time until the driver counts as unresponsive. It is not positive once it does.
func (p Pending) SilentIn(now time.Time) time.Duration {
	if p.Since.IsZero() {
		return p.Silence
	}
	return p.Since.Add(p.Silence).Sub(now)
}

// Located means that the caller must store Location with the machine, in driver.AnnotationLocation,
// before the instance is created or deleted.
type Located struct {
	Location string
}

// Exists means that the instance is complete.
type Exists struct {
	Instance Instance
	// Location must be stored with the machine if it is not empty.
	Location string
	// Created reports whether the engine created the instance rather than found it.
	Created bool
	// LastKnownState is nil if the driver returned none.
	LastKnownState *string
}

// Lost means that the driver does not find an instance that has a recorded provider ID.
type Lost struct{}

// Gone means that the instance was deleted, or that the driver finds none or cannot look for it.
type Gone struct {
	// LastKnownState is nil if the driver returned none.
	LastKnownState *string
}

// Remains means that the driver accepted the deletion and still has the instance.
type Remains struct {
	// LastKnownState is nil if the driver returned none.
	LastKnownState *string
	// Retry is the time until the driver is called again.
	Retry time.Duration
}

// Failed means that the last call failed. It will be retried.
type Failed struct {
	// Failure is never nil.
	Failure *Failure
	// Uninitialized is the instance whose initialization failed. It is nil if another call failed.
	Uninitialized *Exists
	// LastKnownState is nil if the driver returned none.
	LastKnownState *string
	// Fallback is set if a creation failed for lack of capacity.
	Fallback Fallback
	// Retry is the time until the driver is called again.
	Retry time.Duration

	// sooner is the time until the driver is called again if it is shorter than usual, or else zero.
	sooner time.Duration
}

// Compared means that the driver compared the instance with its class and, if requested, changed it.
type Compared struct {
	Differences Differences
}

func (Pending) ensureResult() {}
func (Located) ensureResult() {}
func (Exists) ensureResult()  {}
func (Lost) ensureResult()    {}
func (Failed) ensureResult()  {}

func (Pending) deleteResult() {}
func (Located) deleteResult() {}
func (Gone) deleteResult()    {}
func (Remains) deleteResult() {}
func (Failed) deleteResult()  {}

func (Pending) findResult() {}
func (Exists) findResult()  {}
func (Gone) findResult()    {}
func (Failed) findResult()  {}

func (Pending) updateResult()  {}
func (Compared) updateResult() {}
func (Failed) updateResult()   {}

// Instance is the driver's description of an instance.
type Instance struct {
	ProviderID string
	NodeName   string
	Addresses  []corev1.NodeAddress
	// FailureDomain is the failure domain of the instance. It is empty if the driver does not report it.
	FailureDomain string
}

// Failure is a failed call.
type Failure struct {
	Method Method
	Code   codes.Code
	Err    error
}

// Error returns the method and the driver's error.
func (f *Failure) Error() string { return fmt.Sprintf("%s: %v", f.Method, f.Err) }

// Unwrap returns the driver's error.
func (f *Failure) Unwrap() error { return f.Err }

func failed(method Method, err error) Failed {
	return Failed{Failure: &Failure{Method: method, Code: codeOf(err), Err: err}}
}

// failureOf returns the failure of a result, or nil if the result is not Failed.
func failureOf(result any) *Failure {
	failed, _ := result.(Failed)
	return failed.Failure
}

// retried reports whether the engine repeats the call after this result.
func retried(result any) bool {
	switch result.(type) {
	case Failed, Remains:
		return true
	}
	return false
}

// retriedIn returns a copy of a result with the time until its call is retried.
func retriedIn(result any, wait time.Duration) any {
	switch r := result.(type) {
	case Failed:
		r.Retry = wait
		return r
	case Remains:
		r.Retry = wait
		return r
	}
	return result
}
