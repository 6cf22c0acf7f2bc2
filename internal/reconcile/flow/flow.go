// Package flow runs a reconcile as a list of named steps.
//
// A step finds out for itself whether its work is done, so that a pass may begin at
// any of them, after any crash. A step whose work is done already continues at
// once; the first step that does not continue ends the pass.
package flow

import (
	"context"
	"fmt"
	"time"
)

// Result is what a step returns. Make one with Continue, Wait, Stop, Gone or Fail; the zero value is
// Continue.
type Result struct {
	ends    bool
	outcome Outcome
}

// Continue goes on with the next step.
func Continue() Result { return Result{} }

// Wait ends the pass. The next one comes with an event or, at the latest, after the given time; zero
// means that only an event brings it. The reason says what is being waited for.
func Wait(after time.Duration, reason string) Result {
	return Result{true, Outcome{After: after, Reason: reason}}
}

// Stop ends the pass because there is nothing more to do until something changes.
func Stop(reason string) Result { return Result{true, Outcome{Reason: reason}} }

// Gone ends the pass because the object is gone, or goes with the finalizer that was just
// removed: nothing of it is left to write.
func Gone(reason string) Result { return Result{true, Outcome{Reason: reason, Gone: true}} }

// Fail ends the pass with an error, to be tried again with back-off. A nil error
// is Continue, so that a step can end with Fail(doIt()).
func Fail(err error) Result {
	if err == nil {
		return Continue()
	}
	return Result{true, Outcome{Reason: err.Error(), Err: err}}
}

// Ends reports whether the result ends the pass. Steps that are made of others ask it.
func (r Result) Ends() bool { return r.ends }

// Step is one named piece of a reconcile. S is what the steps of a pass share.
type Step[S any] struct {
	// Name says what the step does, as in "AwaitCreation".
	Name string
	// Run looks whether the step's work is done, and does what can be done now.
	Run func(ctx context.Context, scope S) Result
}

// Outcome is how a pass ended.
type Outcome struct {
	// Step is the name of the step that ended the pass; empty if all continued.
	Step string
	// After is when to look again at the latest; zero waits for an event.
	After time.Duration
	// Reason says what the pass waits for or why it stopped; empty if all continued.
	Reason string
	// Err is the error of the step that failed, wrapped with the step's name.
	Err error
	// Gone reports that the object is gone, so that there is no status to write.
	Gone bool
}

// Done reports whether every step continued.
func (o Outcome) Done() bool { return o.Step == "" }

// Run takes the steps in turn until one of them ends the pass.
func Run[S any](ctx context.Context, scope S, steps []Step[S]) Outcome {
	for _, step := range steps {
		if result := step.Run(ctx, scope); result.ends {
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

// Sooner returns the shorter of two waits, of which those that are not positive do not count; zero if
// neither does.
func Sooner(a, b time.Duration) time.Duration {
	if a <= 0 || b <= 0 {
		return max(a, b, 0)
	}
	return min(a, b)
}
