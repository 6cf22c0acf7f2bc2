package machinedeployment

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/counts"
	"github.com/millwright-dev/millwright/internal/pool/restore"
	"github.com/millwright-dev/millwright/internal/pool/revision"
	"github.com/millwright-dev/millwright/internal/pool/rollout"
	"github.com/millwright-dev/millwright/internal/reconcile/apierror"
	"github.com/millwright-dev/millwright/internal/reconcile/cascade"
	"github.com/millwright-dev/millwright/internal/reconcile/edge"
)

// create creates the set of the current template. If the API server mutates the set, create deletes it.
func (p scope) create(ctx context.Context, deployment *v1alpha1.MachineDeployment, op rollout.Operation, outcome *rollout.Outcome) error {
	set := op.Next.DeepCopy()
	if message := rollout.Unselected(deployment, set); message != "" {
		return fmt.Errorf("%w: %s", rollout.ErrCreate, message)
	}
	err := p.Client.Create(ctx, set)
	if apierror.Taken(err) {
		return p.nameTaken(ctx, deployment, set)
	}
	if err != nil {
		p.Events.Eventf(deployment, corev1.EventTypeWarning, v1alpha1.DeploymentReasonSetCreateError, "Failed to create machine set %s: %v", set.Name, err)
		return fmt.Errorf("%w: %w", rollout.ErrCreate, err)
	}
	if err := mutated(deployment, set); err != nil {
		p.memory.mutated.Failed(err, deployment.Generation, p.Clock.Now())
		// Without a resource version, since the set's controller may have written the status.
		return errors.Join(err, apierror.IgnoreGone(p.Client.Delete(ctx, set, client.Preconditions{UID: &set.UID})))
	}
	p.memory.sets.Wrote(set)
	p.memory.created.name, p.memory.created.uid, p.memory.created.at = set.Name, set.UID, p.Clock.Now()
	outcome.Created = set
	p.scaled(ctx, deployment, op)
	return nil
}

// mutated returns an error if the API server, usually through a webhook, changed a set so that the deployment does not
// recognize it. The deployment would otherwise create more and more sets.
func mutated(deployment *v1alpha1.MachineDeployment, created *v1alpha1.MachineSet) error {
	fields := rollout.Mutated(deployment, created)
	if len(fields) == 0 {
		return nil
	}
	return fmt.Errorf("%w (%s), so the deployment does not recognize its own set; "+
		"exclude machine sets from the mutating webhook that does this", rollout.ErrMutated, strings.Join(fields, ", "))
}

// stillMutated returns an error if the last new set was mutated and the next one would be, too. It uses a dry run with
// another name, since the last set may still exist. If the dry run does not detect the mutation, the next set is
// created after a delay.
func (p scope) stillMutated(ctx context.Context, r *rollout.Rollout) error {
	memory := p.memory
	if r.Current != nil {
		memory.mutated.Succeeded()
		memory.dryRunDetects = false
	}
	if !memory.mutated.Failing() || r.Deployment.Spec.Paused {
		return nil
	}
	created := r.NewSet(0)
	created.Name, created.GenerateName = "", created.Name+"-"
	if p.Client.Create(ctx, created, client.DryRunAll) == nil {
		if err := mutated(r.Deployment, created); err != nil || memory.dryRunDetects {
			memory.dryRunDetects = true
			return err
		}
	}
	return memory.mutated.Waits(r.Deployment.Generation, p.Clock.Now())
}

// nameTaken returns edge.ErrStale if the existing set is the desired one, which the cache lacks. Otherwise it returns
// ErrNameTaken, also for a set that is being deleted, since the deletion may take long.
func (p scope) nameTaken(ctx context.Context, deployment *v1alpha1.MachineDeployment, desired *v1alpha1.MachineSet) error {
	taken := &v1alpha1.MachineSet{}
	if err := p.Client.Get(ctx, client.ObjectKeyFromObject(desired), taken); err != nil {
		if apierrors.IsNotFound(err) {
			return edge.ErrStale
		}
		return fmt.Errorf("reading machine set %s: %w", desired.Name, err)
	}
	ours := metav1.IsControlledBy(taken, deployment) && taken.DeletionTimestamp.IsZero()
	if ours && revision.Same(&taken.Spec.Template, &deployment.Spec.Template) {
		return edge.ErrStale
	}
	return rollout.ErrNameTaken
}

func (p scope) adopt(ctx context.Context, deployment *v1alpha1.MachineDeployment, op rollout.Operation) error {
	if err := cascade.CheckAlive(ctx, p.Live, deployment, rollout.Kind); err != nil {
		return err
	}
	return p.changeOwner(ctx, deployment, op, append(slices.Clone(op.Set.OwnerReferences), rollout.OwnerReference(deployment)))
}

func (p scope) release(ctx context.Context, deployment *v1alpha1.MachineDeployment, op rollout.Operation) error {
	return p.changeOwner(ctx, deployment, op, slices.DeleteFunc(slices.Clone(op.Set.OwnerReferences), func(owner metav1.OwnerReference) bool {
		return owner.UID == deployment.UID
	}))
}

func (p scope) changeOwner(ctx context.Context, deployment *v1alpha1.MachineDeployment, op rollout.Operation, owners []metav1.OwnerReference) error {
	next := op.Set.DeepCopy()
	switch {
	case op.Action != rollout.Adopt:
	case next.UID == p.memory.created.uid:
		restore.End(next) // the set was not restored: something else, such as a webhook, removed its owner
	default:
		restore.BeginSet(next, p.Clock.Now()) // with an owner, the set would look like a new one
	}
	next.OwnerReferences = owners
	if err := p.patchSet(ctx, next, op.Set); err != nil {
		return apierror.IgnoreGone(err)
	}
	verb := "Adopted"
	if op.Action == rollout.Release {
		verb = "Released"
		p.memory.sets.Forget(client.ObjectKeyFromObject(next))
	}
	p.Events.Eventf(deployment, corev1.EventTypeNormal, verb, "%s machine set %s: %s", verb, next.Name, op.Reason)
	ctrl.LoggerFrom(ctx).Info(verb+" machine set", "machineSet", next.Name, "why", op.Reason)
	return nil
}

func (p scope) change(ctx context.Context, r *rollout.Rollout, op rollout.Operation, outcome *rollout.Outcome) error {
	next := op.Next.DeepCopy()
	if err := p.patchSet(ctx, next, op.Set); err != nil {
		if apierror.Gone(err) {
			return edge.ErrStale
		}
		return err
	}
	outcome.Written[next.Name] = next
	if op.Action == rollout.Scale {
		p.scaled(ctx, r.Deployment, op)
	} else {
		p.Events.Eventf(r.Deployment, corev1.EventTypeNormal, "RefreshedMachineSet", "Refreshed machine set %s: %s", next.Name, op.Reason)
		ctrl.LoggerFrom(ctx).Info("Refreshed machine set", "machineSet", next.Name, "why", op.Reason)
	}
	if counts.Desired(next) > 0 || r.Nodes == nil {
		return nil
	}
	for _, n := range r.Nodes.OfOld { // these nodes are no longer read
		if metav1.IsControlledBy(n.Machine, next) {
			p.memory.nodes.Forget(client.ObjectKeyFromObject(n.Node))
		}
	}
	return nil
}

func (p scope) prune(ctx context.Context, deployment *v1alpha1.MachineDeployment, op rollout.Operation) error {
	if err := p.deleteSet(ctx, op.Set); err != nil {
		return err
	}
	p.Events.Eventf(deployment, corev1.EventTypeNormal, "DeletedMachineSet", "Deleted machine set %s of revision %s: %s",
		op.Set.Name, op.Set.Annotations[v1alpha1.AnnotationKeyRevision], op.Reason)
	ctrl.LoggerFrom(ctx).Info("Deleted machine set", "machineSet", op.Set.Name, "why", op.Reason)
	return nil
}

// deleteSet deletes a set unless it changed since it was read. It may have been replaced or released, or may have
// Machines now.
func (p scope) deleteSet(ctx context.Context, set *v1alpha1.MachineSet) error {
	as := client.Preconditions{UID: &set.UID, ResourceVersion: &set.ResourceVersion}
	if err := p.Client.Delete(ctx, set, as); apierror.IgnoreGone(err) != nil {
		return fmt.Errorf("deleting machine set %s: %w", set.Name, err)
	}
	return nil
}

// scaled reports an operation with one event and one log line.
func (p scope) scaled(ctx context.Context, deployment *v1alpha1.MachineDeployment, op rollout.Operation) {
	verb, cause, name := "Scaled up", v1alpha1.CauseScaledUp, op.Next.Name
	if op.Set != nil && op.Replicas < op.Set.Spec.Replicas {
		verb, cause = "Scaled down", v1alpha1.CauseScaledDown
	}
	annotations := map[string]string{v1alpha1.EventAnnotationCause: cause, v1alpha1.EventAnnotationObjects: name}
	p.Events.AnnotatedEventf(deployment, annotations, corev1.EventTypeNormal, "ScalingMachineSet", "%s machine set %s to %d: %s", verb, name, op.Replicas, op.Reason)
	ctrl.LoggerFrom(ctx).Info(verb+" machine set", "machineSet", name, "replicas", op.Replicas, "why", op.Reason)
}

func (p scope) patchSet(ctx context.Context, next, set *v1alpha1.MachineSet) error {
	if err := p.memory.sets.Patch(ctx, p.Client, next, set); err != nil {
		return fmt.Errorf("patching machine set %s: %w", set.Name, err)
	}
	return nil
}
