package machinedeployment

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/machinedeployment/planner"
	"github.com/millwright-dev/millwright/internal/controllers/machinedeployment/status"
	"github.com/millwright-dev/millwright/internal/reconcile/apierror"
	"github.com/millwright-dev/millwright/internal/reconcile/expectations"
)

// apply carries out a plan. It stops at the first failure, but for marks of Machines and of nodes, and
// after the operations that end a pass.
func (p pass) apply(ctx context.Context, f planner.Facts, plan []planner.Operation) planner.Outcome {
	outcome := planner.Outcome{Written: map[string]*v1alpha1.MachineSet{}}
	for _, op := range plan {
		if outcome.Ended && !op.Ends() {
			break
		}
		if outcome.NodesLater && op.Action == planner.PatchNodes {
			continue // a target that does not answer costs its time once
		}
		err := p.applyOne(ctx, f, op, &outcome)
		switch {
		case err == nil:
			outcome.Ended = outcome.Ended || op.Ends()
		case errors.Is(err, errNodes):
			ctrl.LoggerFrom(ctx).Info("Some nodes are marked later", "err", err.Error())
			outcome.NodesLater = true
		case errors.Is(err, planner.ErrMark) && !outdated(err):
			outcome.LeaveUnmarked(err)
		default:
			outcome.Failure = err
			return outcome
		}
	}
	return outcome
}

func (p pass) applyOne(ctx context.Context, f planner.Facts, op planner.Operation, outcome *planner.Outcome) error {
	switch op.Action {
	case planner.Create:
		return p.create(ctx, f.Deployment, op, outcome)
	case planner.Scale, planner.Refresh:
		return p.change(ctx, f, op, outcome)
	case planner.Adopt:
		return p.adopt(ctx, f.Deployment, op)
	case planner.Release:
		return p.release(ctx, f.Deployment, op)
	case planner.Prune:
		return p.prune(ctx, f.Deployment, op)
	case planner.Mark:
		return p.mark(ctx, f.Deployment, op)
	case planner.PatchNodes:
		return p.patchNodes(ctx, f.Deployment, op)
	case planner.RollBack, planner.Refuse:
		return p.rollBack(ctx, f, op, outcome)
	}
	return nil
}

// rollBack gives the deployment an old template, or refuses that. In both cases spec.rollbackTo is
// removed. A refusal goes into the status first, or it would be lost if the process ended here.
func (p pass) rollBack(ctx context.Context, f planner.Facts, op planner.Operation, outcome *planner.Outcome) error {
	deployment, kind := f.Deployment, corev1.EventTypeNormal
	if op.Action == planner.Refuse {
		kind = corev1.EventTypeWarning
	}
	if op.Topic == v1alpha1.DeploymentReasonRevisionNotFound {
		var err error
		if deployment, err = p.writeStatus(ctx, deployment, status.RollbackRefused(f, op.Reason)); err != nil {
			return err
		}
		outcome.Deployment = deployment
	}
	next := deployment.DeepCopy()
	next.Annotations, next.Spec = op.Deployment.Annotations, op.Deployment.Spec
	if err := p.patchDeployment(ctx, next, deployment); err != nil {
		return err
	}
	p.Events.Event(next, kind, op.Topic, op.Reason)
	ctrl.LoggerFrom(ctx).Info("Answered the wish to roll back", "outcome", op.Topic, "why", op.Reason)
	return nil
}

// mark tells the set of a Machine to delete it before others.
func (p pass) mark(ctx context.Context, deployment *v1alpha1.MachineDeployment, op planner.Operation) error {
	machine := op.Machine.DeepCopy()
	metav1.SetMetaDataAnnotation(&machine.ObjectMeta, v1alpha1.AnnotationKeyMachinePriority, planner.FirstPriority)
	metav1.SetMetaDataAnnotation(&machine.ObjectMeta, v1alpha1.AnnotationKeyMarkedForDeletionTime, op.Since)
	err := p.Client.Patch(ctx, machine, expectations.Locked(op.Machine))
	if apierror.Gone(err) {
		return errCacheBehind
	}
	if err != nil {
		return fmt.Errorf("%w: %s: %w", planner.ErrMark, machine.Name, err)
	}
	if !planner.Marked(machine, op.Since) {
		return fmt.Errorf("%w: %s: the API server changes its mark. Mostly a mutating webhook does that: keep it from machines", planner.ErrMark, machine.Name)
	}
	p.Events.Eventf(deployment, corev1.EventTypeNormal, "MachineMarked", "Machine %s goes first: %s", machine.Name, op.Reason)
	ctrl.LoggerFrom(ctx).Info("Marked machine for deletion", "machine", machine.Name, "since", op.Since, "why", op.Reason)
	return nil
}

// annotate writes what the deployment's metadata say about its sets, and returns it as it is then.
func (p pass) annotate(ctx context.Context, f planner.Facts, deployment *v1alpha1.MachineDeployment) (*v1alpha1.MachineDeployment, error) {
	f.Deployment = deployment
	next := planner.Annotated(f)
	if equality.Semantic.DeepEqual(next, deployment) {
		return deployment, nil
	}
	if err := p.patchDeployment(ctx, next, deployment); err != nil {
		return deployment, err
	}
	return next, nil
}

func (p pass) addFinalizer(ctx context.Context, deployment *v1alpha1.MachineDeployment) (*v1alpha1.MachineDeployment, error) {
	next := deployment.DeepCopy()
	if !controllerutil.AddFinalizer(next, v1alpha1.FinalizerMCM) {
		return deployment, nil
	}
	return next, p.patchDeployment(ctx, next, deployment)
}

func (p pass) removeFinalizer(ctx context.Context, deployment *v1alpha1.MachineDeployment) error {
	next := deployment.DeepCopy()
	controllerutil.RemoveFinalizer(next, v1alpha1.FinalizerMCM)
	return apierror.IgnoreGone(p.patchDeployment(ctx, next, deployment))
}

func (p pass) patchDeployment(ctx context.Context, next, deployment *v1alpha1.MachineDeployment) error {
	if err := p.memory.deployment.Patch(ctx, p.Client, next, deployment); err != nil {
		return fmt.Errorf("patching machine deployment %s: %w", deployment.Name, err)
	}
	return nil
}
