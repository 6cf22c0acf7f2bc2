// Package preservation decides whether a Machine is preserved, and what that changes.
package preservation

import (
	"cmp"
	"slices"
	"time"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// The values of the annotation that asks for preservation.
const (
	// Now preserves at once, in any phase.
	Now = "now"
	// WhenFailed preserves once the Machine has failed.
	WhenFailed = "when-failed"
	// AutoPreserved is WhenFailed, set by a controller.
	AutoPreserved = "auto-preserved"
	// Never ends a preservation, and keeps a set from preserving the Machine.
	Never = "false"
)

// Values are the valid values of the annotation.
var Values = []string{Now, WhenFailed, AutoPreserved, Never}

// Valid reports whether the annotation may have a value.
func Valid(value string) bool { return slices.Contains(Values, value) }

// Active reports whether a Machine is preserved at a time, so that no scaling, rollout or
// replacement deletes it: until its expiry or, before one is set, as its annotations ask.
func Active(machine *v1alpha1.Machine, now time.Time) bool {
	if expiry := machine.Status.CurrentStatus.PreserveExpiryTime; expiry != nil {
		return now.Before(expiry.Time)
	}
	// The node's annotation, which is copied, outranks the Machine's own.
	switch cmp.Or(machine.Annotations[v1alpha1.AnnotationKeyLastAppliedPreserve], machine.Annotations[v1alpha1.AnnotationKeyPreserve]) {
	case Now:
		return true
	case WhenFailed, AutoPreserved:
		return failed(machine)
	default:
		return false
	}
}

// MayDrain reports whether the node of a Machine may be drained, since the Machine failed and is
// preserved.
func MayDrain(machine *v1alpha1.Machine) bool {
	return failed(machine) && machine.Status.CurrentStatus.PreserveExpiryTime != nil
}

func failed(machine *v1alpha1.Machine) bool {
	return machine.Status.CurrentStatus.Phase == v1alpha1.MachineFailed
}
