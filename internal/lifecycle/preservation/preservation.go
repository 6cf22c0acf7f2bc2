// Package preservation decides whether a Machine is preserved.
package preservation

import (
	"cmp"
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
)

// Active reports whether a Machine is preserved at a time, so that no scaling, rollout or
// replacement deletes it: until its expiry or, before one is set, as its annotations ask.
func Active(machine *v1alpha1.Machine, now time.Time) bool {
	if expiry := machine.Status.CurrentStatus.PreserveExpiryTime; expiry != nil {
		return now.Before(expiry.Time)
	}
	// The node's annotation, which MCM copies, outranks the Machine's own.
	switch cmp.Or(machine.Annotations[v1alpha1.AnnotationKeyLastAppliedPreserve], machine.Annotations[v1alpha1.AnnotationKeyPreserve]) {
	case Now:
		return true
	case WhenFailed, AutoPreserved:
		return machine.Status.CurrentStatus.Phase == v1alpha1.MachineFailed
	default:
		return false
	}
}
