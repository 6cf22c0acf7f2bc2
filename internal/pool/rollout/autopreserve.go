package rollout

import (
	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/counts"
)

// Each set counts the failed Machines that it preserves automatically. To stay within the deployment's maximum,
// the maximum is divided among the sets: old sets keep what they need, which decreases over time, and the
// current set gets the remainder.

// autoPreserveMax returns the share of a set. The set is one of the sets of f, or nil for a new one. A share
// grows only after the other shares have become smaller.
func autoPreserveMax(f Facts, set *v1alpha1.MachineSet) int32 {
	whole := max(0, f.Deployment.Spec.AutoPreserveFailedMachineMax)
	if set != nil && set != newest(f) {
		return oldAutoPreserveMax(f, set, whole)
	}
	held, preserved := int64(0), int64(0)
	for _, old := range f.Old {
		if old != set && mayPreserve(old) {
			held += int64(max(0, old.Spec.AutoPreserveFailedMachineMax))
			preserved += int64(max(0, old.Status.AutoPreserveFailedMachineCount))
		}
	}
	rest := max(0, int64(whole)-held)
	if set != nil { // it keeps what it preserves while old sets have more than they need
		rest = max(rest, min(int64(set.Status.AutoPreserveFailedMachineCount), int64(whole)-preserved))
	}
	return counts.Clamp(rest)
}

// mayPreserve reports whether an old set has Machines, and may preserve some of them.
func mayPreserve(set *v1alpha1.MachineSet) bool {
	return set.Spec.AutoPreserveFailedMachineMax > 0 && counts.Existing(set) > 0
}

// newest returns the current set, or the latest one if the rollout has not begun.
func newest(f Facts) *v1alpha1.MachineSet {
	if f.Current == nil && len(f.Old) > 0 {
		return f.Old[len(f.Old)-1]
	}
	return f.Current
}

// oldAutoPreserveMax returns how many Machines an old set preserves, at most what newer old sets leave of the
// maximum.
func oldAutoPreserveMax(f Facts, set *v1alpha1.MachineSet, whole int32) int32 {
	for i := len(f.Old) - 1; i >= 0; i-- {
		old := f.Old[i]
		if old == newest(f) {
			continue
		}
		share := max(0, old.Spec.AutoPreserveFailedMachineMax)
		if counts.Settled(old) {
			share = min(share, max(0, old.Status.AutoPreserveFailedMachineCount))
		}
		share = min(share, whole)
		if old == set {
			return share
		}
		whole -= share
	}
	return 0
}
