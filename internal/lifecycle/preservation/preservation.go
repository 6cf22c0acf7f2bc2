// Package preservation decides whether a Machine is preserved.
package preservation

import (
	"time"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// The values by which a Machine or a Node asks for preservation.
const (
	// Now preserves at once, in any phase.
	Now = "now"
	// WhenFailed preserves once the Machine has failed.
	WhenFailed = "when-failed"
	// AutoPreserved is WhenFailed, asked for by no user.
	AutoPreserved = "auto-preserved"
)

// Active reports whether a Machine is preserved at a time: no scaling, rollout or replacement
// deletes it then. That is so until its expiry; before one is set, the wish counts.
func Active(machine *v1alpha1.Machine, now time.Time) bool {
	if expiry := machine.Status.CurrentStatus.PreserveExpiryTime; expiry != nil {
		return now.Before(expiry.Time)
	}
	switch wish(machine) {
	case Now:
		return true
	case WhenFailed, AutoPreserved:
		return machine.Status.CurrentStatus.Phase == v1alpha1.MachineFailed
	default:
		return false
	}
}

// wish is what was asked for. Where the Node was asked to be preserved, its Machine bears
// that in the annotation of what was last applied, and then the Machine's own annotation
// does not count.
func wish(machine *v1alpha1.Machine) string {
	if asked := machine.Annotations[v1alpha1.AnnotationKeyLastAppliedPreserve]; asked != "" {
		return asked
	}
	return machine.Annotations[v1alpha1.AnnotationKeyPreserve]
}
