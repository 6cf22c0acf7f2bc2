// Package preservation decides whether a Machine is preserved, and which changes that requires.
package preservation

import (
	"cmp"
	"slices"
	"time"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// The values of the annotation that requests preservation.
const (
	// Now preserves immediately, in any phase.
	Now = "now"
	// WhenFailed preserves a Machine once it has failed.
	WhenFailed = "when-failed"
	// AutoPreserved is like WhenFailed, but set by a controller.
	AutoPreserved = "auto-preserved"
	// Never stops a preservation, and prevents a set from preserving the Machine.
	Never = "false"
)

// Values are the valid values of the annotation.
var Values = []string{Now, WhenFailed, AutoPreserved, Never}

// Valid reports whether a value of the annotation is valid.
func Valid(value string) bool { return slices.Contains(Values, value) }

// Active reports whether a Machine is preserved at the given time, so that no scaling, rollout or replacement
// deletes it. It is preserved until its expiry. If no expiry is set yet, its annotations decide.
func Active(machine *v1alpha1.Machine, now time.Time) bool {
	if expiry := machine.Status.CurrentStatus.PreserveExpiryTime; expiry != nil {
		return now.Before(expiry.Time)
	}
	// The copy of the node's annotation overrides the Machine's own annotation.
	switch cmp.Or(machine.Annotations[v1alpha1.AnnotationKeyLastAppliedPreserve], machine.Annotations[v1alpha1.AnnotationKeyPreserve]) {
	case Now:
		return true
	case WhenFailed, AutoPreserved:
		return failed(machine)
	default:
		return false
	}
}

// MayDrain reports whether the node of a Machine may be drained because the Machine failed and is preserved.
func MayDrain(machine *v1alpha1.Machine) bool {
	return failed(machine) && machine.Status.CurrentStatus.PreserveExpiryTime != nil
}

func failed(machine *v1alpha1.Machine) bool {
	return machine.Status.CurrentStatus.Phase == v1alpha1.MachineFailed
}
