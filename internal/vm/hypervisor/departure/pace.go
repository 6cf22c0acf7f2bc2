package departure

import (
	"fmt"
	"time"

	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// pace decides when a copy that does not converge is forced to an end.
type pace struct {
	begun time.Time
	// timeout is how long the copy may take. If 0, there is no limit.
	timeout time.Duration
	// cancel is true if the copy is given up after the timeout.
	cancel bool
}

// paceAction is what happens to a copy.
type paceAction string

const (
	// keepCopying continues within the limits of the copy.
	keepCopying paceAction = "keep-copying"
	// forceRest lifts the limits, and stops the guest for the rest of the copy as soon as possible.
	forceRest paceAction = "force-rest"
	// giveUp makes the copy fail, and the guest continues.
	giveUp paceAction = "give-up"
)

// paceOf returns the pace of a copy that begins now. The limits may be nil.
func paceOf(limits *vmpb.MigrationLimits, now time.Time) pace {
	return pace{
		begun: now, timeout: limits.GetCompletionTimeout().AsDuration(),
		cancel: limits.GetTimeoutPolicy() == vmpb.MigrationLimits_TIMEOUT_POLICY_CANCEL,
	}
}

// next returns what happens to the copy now. forceAt is the time from which on the guest must be stopped for the rest
// because the process terminates; if it is nil, the process does not terminate.
func (p pace) next(now time.Time, forceAt *time.Time) paceAction {
	elapsed := now.Sub(p.begun)
	over := p.timeout > 0 && elapsed >= p.timeout
	switch {
	case forceAt != nil && !now.Before(*forceAt):
		return forceRest
	case !over:
		return keepCopying
	case forceAt != nil && p.cancel:
		return keepCopying // the guest cannot stay
	case forceAt == nil && (p.cancel || elapsed >= 2*p.timeout):
		return giveUp
	}
	return forceRest
}

// timedOut returns the error of a copy that is given up.
func (p pace) timedOut() error {
	err := fmt.Errorf("%w of %s", errTimedOut, p.timeout)
	if p.cancel {
		return err
	}
	return fmt.Errorf("%w, nor within the same time again with a longer pause of the guest", err)
}
