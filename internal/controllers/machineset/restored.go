package machineset

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/restore"
	"github.com/millwright-dev/millwright/internal/pool/scale"
)

// register adds the finalizer to a set, and records whether it was restored from a backup.
func (c *Controller) register(ctx context.Context, set *v1alpha1.MachineSet) error {
	before := set.DeepCopy()
	begins := restore.BeginSet(set, c.Clock.Now())
	legacy := controllerutil.RemoveFinalizer(set, v1alpha1.FinalizerLegacy)
	added := controllerutil.AddFinalizer(set, v1alpha1.FinalizerMCM)
	if !begins && !legacy && !added {
		return nil
	}
	if added {
		restore.RecordUID(set)
	}
	if err := c.patchSet(ctx, set, before); err != nil {
		return err
	}
	if begins {
		c.Events.Eventf(set, corev1.EventTypeNormal, "AwaitingRestore", "Machine set %s was restored from a backup; waiting until %s for its %d machines to be restored",
			set.Name, restore.Until(set).Format(time.RFC3339), set.Spec.Replicas)
		ctrl.LoggerFrom(ctx).Info("The machine set was restored from a backup; waiting for its machines", "until", restore.Until(set))
	}
	return nil
}

// endRestore records that a restored set no longer waits.
func (c *Controller) endRestore(ctx context.Context, operations []scale.Operation, done *outcome) error {
	for _, op := range only(operations, scale.EndRestore) {
		before := done.set.DeepCopy()
		restore.End(done.set)
		if err := c.patchSet(ctx, done.set, before); err != nil {
			return err
		}
		kind, reason := corev1.EventTypeNormal, "Restored"
		if op.Count > 0 {
			kind, reason = corev1.EventTypeWarning, "RestoreIncomplete"
		}
		c.Events.Eventf(done.set, kind, reason, "Machine set %s no longer waits for restored machines: %s", done.set.Name, op.Reason)
		ctrl.LoggerFrom(ctx).Info("The machine set no longer waits for restored machines", "why", op.Reason)
	}
	return nil
}
