package machinedeployment

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/restore"
	"github.com/millwright-dev/millwright/internal/pool/rollout"
)

// register adds the finalizer to a deployment, and records whether it was restored from a backup. It returns the
// deployment as written.
func (p scope) register(ctx context.Context, deployment *v1alpha1.MachineDeployment) (*v1alpha1.MachineDeployment, error) {
	begins := false
	next, err := p.changeFinalizer(ctx, deployment, func(object client.Object, finalizer string) bool {
		begins = restore.BeginDeployment(object.(*v1alpha1.MachineDeployment), p.Clock.Now())
		return controllerutil.AddFinalizer(object, finalizer) || begins
	})
	if err == nil && begins {
		p.Events.Eventf(next, corev1.EventTypeNormal, "AwaitingRestore", "Machine deployment %s was restored from a backup; waiting until %s for its machine sets to be restored",
			next.Name, restore.Until(next).Format(time.RFC3339))
		ctrl.LoggerFrom(ctx).Info("The machine deployment was restored from a backup; waiting for its machine sets", "until", restore.Until(next))
	}
	return next, err
}

// endRestore records that a restored deployment no longer waits.
func (p scope) endRestore(ctx context.Context, deployment *v1alpha1.MachineDeployment, op rollout.Operation) error {
	next := deployment.DeepCopy()
	restore.End(next)
	if err := p.patchDeployment(ctx, next, deployment); err != nil {
		return err
	}
	kind := corev1.EventTypeNormal
	if op.Topic != "Restored" {
		kind = corev1.EventTypeWarning
	}
	p.Events.Eventf(next, kind, op.Topic, "Machine deployment %s no longer waits for restored machine sets: %s", next.Name, op.Reason)
	ctrl.LoggerFrom(ctx).Info("The machine deployment no longer waits for restored machine sets", "why", op.Reason)
	return nil
}
