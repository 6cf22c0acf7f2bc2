package machinedeployment

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/deletion"
	"github.com/millwright-dev/millwright/internal/pool/rollout"
	"github.com/millwright-dev/millwright/internal/reconcile/apierror"
	"github.com/millwright-dev/millwright/internal/reconcile/edge"
)

// takeClass sets the class of a set to the class in the template.
func (p scope) takeClass(ctx context.Context, deployment *v1alpha1.MachineDeployment, op rollout.Operation) error {
	next := op.Next.DeepCopy()
	if err := p.patchSet(ctx, next, op.Set); err != nil {
		if apierror.Gone(err) {
			return edge.ErrStale
		}
		return err
	}
	class := next.Spec.Template.Spec.Class.Name
	p.Events.Eventf(deployment, corev1.EventTypeNormal, v1alpha1.DeploymentReasonClassTaken, "Changed machine set %s to class %q: %s", next.Name, class, op.Reason)
	ctrl.LoggerFrom(ctx).Info("Changed class of machine set", "machineSet", next.Name, "class", class, "why", op.Reason)
	return nil
}

// changeClass carries out one step of the change of a Machine to the class in the template.
func (p scope) changeClass(ctx context.Context, r *rollout.Rollout, op rollout.Operation) error {
	machine := op.Machine.DeepCopy()
	switch op.Action {
	case rollout.AskUpdate:
		r.LiveUpdate.Ask(machine)
	case rollout.ForgetUpdate:
		r.LiveUpdate.Forget(machine)
	case rollout.FollowClass:
		r.LiveUpdate.Follow(machine)
	case rollout.Retire:
		deletion.Prefer(machine)
	}
	if err := p.patchMachine(ctx, machine, op.Machine); err != nil {
		return err
	}
	if op.Action == rollout.FollowClass {
		p.Events.Eventf(r.Deployment, corev1.EventTypeNormal, v1alpha1.DeploymentReasonMachineFollows,
			"Changed machine %s to class %q: %s", machine.Name, machine.Spec.Class.Name, op.Reason)
	}
	ctrl.LoggerFrom(ctx).Info("Changed machine", "action", op.Action, "machine", machine.Name, "why", op.Reason)
	return nil
}
