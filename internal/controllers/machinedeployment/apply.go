package machinedeployment

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/deletion"
	"github.com/millwright-dev/millwright/internal/pool/rollout"
	"github.com/millwright-dev/millwright/internal/pool/rollout/status"
	"github.com/millwright-dev/millwright/internal/reconcile/apierror"
	"github.com/millwright-dev/millwright/internal/reconcile/edge"
	"github.com/millwright-dev/millwright/internal/reconcile/expectations"
)

// apply carries out a plan. It stops at the first failure, unless a Machine or a node could not be marked, and after
// the operations that end a pass.
func (p scope) apply(ctx context.Context, r *rollout.Rollout, plan []rollout.Operation) rollout.Outcome {
	outcome := rollout.Outcome{Written: map[string]*v1alpha1.MachineSet{}}
	for _, op := range plan {
		if outcome.Ended && !op.StopsPass() {
			break
		}
		if outcome.NodesLater && op.Action == rollout.PatchNodes {
			continue // wait only once for a target that does not respond
		}
		err := p.applyOne(ctx, r, op, &outcome)
		switch {
		case err == nil:
			outcome.Ended = outcome.Ended || op.StopsPass()
		case errors.Is(err, errNodes):
			ctrl.LoggerFrom(ctx).Info("Cannot mark some nodes; retrying later", "err", err.Error())
			outcome.NodesLater = true
		case errors.Is(err, rollout.ErrMark) && !edge.Outdated(err):
			outcome.Unmarked = append(outcome.Unmarked, err)
		default:
			outcome.Failure = err
			return outcome
		}
	}
	return outcome
}

func (p scope) applyOne(ctx context.Context, r *rollout.Rollout, op rollout.Operation, outcome *rollout.Outcome) error {
	switch op.Action {
	case rollout.Create:
		return p.create(ctx, r.Deployment, op, outcome)
	case rollout.Scale, rollout.Refresh:
		return p.change(ctx, r, op, outcome)
	case rollout.Adopt:
		return p.adopt(ctx, r.Deployment, op)
	case rollout.Release:
		return p.release(ctx, r.Deployment, op)
	case rollout.Prune:
		return p.prune(ctx, r.Deployment, op)
	case rollout.Mark:
		return p.mark(ctx, r.Deployment, op)
	case rollout.Transfer:
		return p.transfer(ctx, r.Deployment, op)
	case rollout.Settle:
		return p.settle(ctx, op)
	case rollout.TakeClass:
		return p.takeClass(ctx, r.Deployment, op)
	case rollout.AskUpdate, rollout.ForgetUpdate, rollout.FollowClass, rollout.Retire:
		return p.changeClass(ctx, r, op)
	case rollout.PatchNodes:
		return p.patchNodes(ctx, r.Deployment, op)
	case rollout.RollBack, rollout.Refuse:
		return p.rollBack(ctx, r, op, outcome)
	case rollout.EndRestore:
		return p.endRestore(ctx, r.Deployment, op)
	}
	return nil
}

// rollBack restores a previous template or refuses the rollback, and removes spec.rollbackTo. It writes a refusal to
// the status first. Otherwise the refusal would be lost if the process terminated between the writes.
func (p scope) rollBack(ctx context.Context, r *rollout.Rollout, op rollout.Operation, outcome *rollout.Outcome) error {
	deployment, kind := r.Deployment, corev1.EventTypeNormal
	if op.Action == rollout.Refuse {
		kind = corev1.EventTypeWarning
	}
	if op.Topic == v1alpha1.DeploymentReasonRevisionNotFound {
		var err error
		if deployment, err = p.writeStatus(ctx, deployment, status.RollbackRefused(r, op.Reason)); err != nil {
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
	ctrl.LoggerFrom(ctx).Info("Handled spec.rollbackTo", "outcome", op.Topic, "why", op.Reason)
	return nil
}

// mark marks a Machine so that its set deletes it before other Machines.
func (p scope) mark(ctx context.Context, deployment *v1alpha1.MachineDeployment, op rollout.Operation) error {
	machine := op.Machine.DeepCopy()
	deletion.Mark(machine, op.Since)
	err := p.Client.Patch(ctx, machine, expectations.Locked(op.Machine))
	if apierror.Gone(err) {
		return edge.ErrStale
	}
	if err != nil {
		return fmt.Errorf("%w: %s: %w", rollout.ErrMark, machine.Name, err)
	}
	if deletion.Marked(machine) != op.Since {
		return fmt.Errorf("%w: %s: the API server changed the mark; exclude machines from the mutating webhook that does this", rollout.ErrMark, machine.Name)
	}
	annotations := map[string]string{v1alpha1.EventAnnotationCause: v1alpha1.CauseNamedForDeletion, v1alpha1.EventAnnotationObjects: machine.Name}
	p.Events.AnnotatedEventf(deployment, annotations, corev1.EventTypeNormal, "MachineMarked", "Machine %s is deleted first: %s", machine.Name, op.Reason)
	ctrl.LoggerFrom(ctx).Info("Marked machine for deletion", "machine", machine.Name, "since", op.Since, "why", op.Reason)
	return nil
}

// annotate writes the deployment's metadata that follows from its sets, and returns the deployment as written.
func (p scope) annotate(ctx context.Context, r *rollout.Rollout, deployment *v1alpha1.MachineDeployment) (*v1alpha1.MachineDeployment, error) {
	next := r.Annotated(deployment)
	if equality.Semantic.DeepEqual(next, deployment) {
		return deployment, nil
	}
	if err := p.patchDeployment(ctx, next, deployment); err != nil {
		return deployment, err
	}
	return next, nil
}

// changeFinalizer patches a deployment if change adds or removes its finalizer. In both cases, it also removes the
// finalizer of old versions of MCM, since nothing else does.
func (p scope) changeFinalizer(ctx context.Context, deployment *v1alpha1.MachineDeployment, change func(client.Object, string) bool) (*v1alpha1.MachineDeployment, error) {
	next := deployment.DeepCopy()
	changed := change(next, v1alpha1.FinalizerMCM)
	if !controllerutil.RemoveFinalizer(next, v1alpha1.FinalizerLegacy) && !changed {
		return deployment, nil
	}
	return next, p.patchDeployment(ctx, next, deployment)
}

func (p scope) patchDeployment(ctx context.Context, next, deployment *v1alpha1.MachineDeployment) error {
	if err := p.memory.deployment.Patch(ctx, p.Client, next, deployment); err != nil {
		return fmt.Errorf("patching machine deployment %s: %w", deployment.Name, err)
	}
	return nil
}

// errNodes marks failures to mark nodes. A rollout continues without the marks, but may move Pods twice.
var errNodes = errors.New("marking nodes")

const (
	// maxNodePatches is the number of nodes that are patched at the same time.
	maxNodePatches = 16
	// nodesTimeout limits the time for the nodes of one operation. The next pass patches the remaining nodes.
	nodesTimeout = 10 * time.Second
)

// patchNodes patches all nodes. It continues after a failure, and returns the first one.
func (p scope) patchNodes(ctx context.Context, deployment *v1alpha1.MachineDeployment, op rollout.Operation) error {
	limited, cancel := context.WithTimeout(ctx, nodesTimeout)
	defer cancel()
	var group errgroup.Group
	group.SetLimit(maxNodePatches)
	for _, change := range op.Nodes {
		group.Go(func() error { return p.patchNode(limited, change) })
	}
	err := group.Wait()
	if err != nil {
		return fmt.Errorf("%w: %w", errNodes, err)
	}
	if op.Topic != "" {
		p.Events.Event(deployment, corev1.EventTypeNormal, op.Topic, op.Reason)
	}
	ctrl.LoggerFrom(ctx).Info("Patched nodes", "why", op.Reason)
	return nil
}

// patchNode patches a node. The patch has an optimistic lock only if it replaces the list of taints, since the kubelet
// writes often.
func (p scope) patchNode(ctx context.Context, change rollout.NodeChange) error {
	// The status is omitted, since it is expensive to compare and not written.
	before := &corev1.Node{ObjectMeta: change.Old.ObjectMeta, Spec: change.Old.Spec}
	patch := client.StrategicMergeFrom(before)
	if !slices.EqualFunc(change.Old.Spec.Taints, change.New.Spec.Taints, rollout.SameTaint) {
		patch = client.StrategicMergeFrom(before, client.MergeFromWithOptimisticLock{})
	}
	err := p.Target.Client().Patch(ctx, change.New, patch)
	if apierror.Gone(err) {
		return nil // the node was deleted meanwhile
	}
	if err != nil {
		return fmt.Errorf("patching node %s: %w", change.Old.Name, err)
	}
	p.memory.nodes.Wrote(change.New)
	return nil
}
