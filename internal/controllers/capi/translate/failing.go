package translate

import (
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// failing puts into the status of the Machine what one of MCM's would have whose calls fail.
// The instance engine spreads their next calls after a restart by that.
func failing(made *v1alpha1.Machine, of *infrav1.MillwrightMachine) {
	ready := meta.FindStatusCondition(of.Status.Conditions, infrav1.ConditionReady)
	inVain := []string{infrav1.ReasonCreationFailed, infrav1.ReasonInsufficientCapacity, infrav1.ReasonInvalidSpec}
	switch {
	case ready == nil:
	case !of.DeletionTimestamp.IsZero() && ready.Reason == infrav1.ReasonDeletionFailed:
		made.Status.CurrentStatus.Phase = v1alpha1.MachineTerminating
		made.Status.LastOperation.State = v1alpha1.MachineStateFailed
	case of.DeletionTimestamp.IsZero() && slices.Contains(inVain, ready.Reason):
		made.Status.CurrentStatus.Phase = v1alpha1.MachineCrashLoopBackOff
	}
}
