package machinedeployment

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/inplaceupdate"
	"github.com/millwright-dev/millwright/internal/pool/rollout"
	"github.com/millwright-dev/millwright/internal/reconcile/apierror"
	"github.com/millwright-dev/millwright/internal/reconcile/edge"
)

// transfer moves a Machine to another set in one patch.
func (p scope) transfer(ctx context.Context, deployment *v1alpha1.MachineDeployment, op rollout.Operation) error {
	machine := op.Machine.DeepCopy()
	inplaceupdate.Transfer(machine, op.From, op.Set)
	if err := p.patchMachine(ctx, machine, op.Machine); err != nil {
		return err
	}
	p.Events.Eventf(deployment, corev1.EventTypeNormal, v1alpha1.DeploymentReasonMachineTransferred,
		"Moved machine %s from machine set %s to %s: %s", machine.Name, op.From.Name, op.Set.Name, op.Reason)
	ctrl.LoggerFrom(ctx).Info("Moved machine", "machine", machine.Name, "from", op.From.Name, "to", op.Set.Name, "why", op.Reason)
	return nil
}

// settle removes the label of a Machine that was moved.
func (p scope) settle(ctx context.Context, op rollout.Operation) error {
	machine := op.Machine.DeepCopy()
	inplaceupdate.Settle(machine)
	return p.patchMachine(ctx, machine, op.Machine)
}

func (p scope) patchMachine(ctx context.Context, machine, before *v1alpha1.Machine) error {
	err := p.memory.machines.Patch(ctx, p.Client, machine, before)
	if apierror.Gone(err) {
		return edge.ErrStale
	}
	if err != nil {
		return fmt.Errorf("patching machine %s: %w", machine.Name, err)
	}
	return nil
}
