// Package flow runs a reconcile as a list of named steps.
//
// Each step finds out for itself whether its work is done, so that a pass may begin at any step after a crash.
// A step whose work is already done continues immediately. The first step that does not continue stops the pass.
package flow

import (
	"context"
	"fmt"
	"time"
)

// Result is the result of a step. Create one with Continue, Wait, Stop, Gone or Fail. The zero value is
// Continue.
type Result struct {
	stops   bool
	outcome Outcome
}

// Continue continues with the next step.
func Continue() Result { return Result{} }

// Wait stops the pass. The next pass is triggered by an event or, at the latest, after the given time. Zero
// means that only an event triggers it. The reason describes what the step waits for.
func Wait(after time.Duration, reason string) Result {
	return Result{true, Outcome{After: after, Reason: reason}}
}

// Stop stops the pass because there is nothing to do until something changes.
func Stop(reason string) Result { return Result{true, Outcome{Reason: reason}} }

// Gone stops the pass because the object is gone, or will be gone because its finalizer was just removed. Its
// status is not written.
func Gone(reason string) Result { return Result{true, Outcome{Reason: reason, Gone: true}} }

// Fail stops the pass with an error, and the pass is retried with back-off. For a nil error it returns Continue,
// so that a step can return Fail(doIt()).
func Fail(err error) Result {
	if err == nil {
		return Continue()
	}
	return Result{true, Outcome{Reason: err.Error(), Err: err}}
}

// StopsPass reports whether the result stops the pass. It is for steps that consist of other steps.
func (r Result) StopsPass() bool { return r.stops }

// Step is one named part of a reconcile. S is the type of the state that the steps of a pass share.
type Step[S any] struct {
	// Name describes the step, such as "AwaitCreation".
	Name string
	// Run checks whether the step's work is done, and does what can be done now.
	Run func(ctx context.Context, scope S) Result
}

// Outcome is the result of a pass.
type Outcome struct {
	// Step is the name of the step that ended the pass. It is empty if all steps continued.
	Step string
	// After is the time until the next pass is due. Zero means that it waits for an event.
	After time.Duration
	// Reason is what the pass waits for, or why it stopped. It is empty if all steps continued.
	Reason string
	// Err is the error of the step that failed, wrapped with the step's name.
	Err error
	// Gone reports that the object is gone, so that there is no status to write.
	Gone bool
}

// Done reports whether every step continued.
func (o Outcome) Done() bool { return o.Step == "" }

// Run runs the steps in order until one of them stops the pass.
func Run[S any](ctx context.Context, scope S, steps []Step[S]) Outcome {
	for _, step := range steps {
		if result := step.Run(ctx, scope); result.stops {
			outcome := result.outcome
			outcome.Step = step.Name
			if outcome.Err != nil {
				outcome.Err = fmt.Errorf("%s: %w", step.Name, outcome.Err)
			}
			return outcome
		}
	}
	return Outcome{}
}

// Sooner returns the shorter of two waits. Waits that are not positive are ignored. It returns zero if both
// are.
func Sooner(a, b time.Duration) time.Duration {
	if a <= 0 || b <= 0 {
		return max(a, b, 0)
	}
	return min(a, b)
}
