package machinedeployment

import (
	"context"
	"errors"
	"fmt"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/machinedeployment/revision"
	"github.com/millwright-dev/millwright/internal/reconcile/expectations"
)

// settle is the least time between two statuses of a deployment that is being deleted: its
// sets count down in swarms, and nobody waits for the numbers.
const settle = 100 * time.Millisecond

// terminate deletes the sets, and lets go when none is left. Until then the status counts what
// is left. One that is deleted without its sets waits until the garbage collector has taken
// those from it, and then its finalizer. It returns after what time to look again without an
// event; 0 is never.
func (c *Controller) terminate(ctx context.Context, deployment *v1alpha1.MachineDeployment, sets []*v1alpha1.MachineSet) (time.Duration, error) {
	if orphaning(deployment) {
		c.orphaned.Store(deployment.UID, struct{}{})
		return 0, nil
	}
	if len(sets) == 0 && controllerutil.ContainsFinalizer(deployment, v1alpha1.FinalizerMCM) {
		return 0, c.removeFinalizer(ctx, deployment)
	}
	if _, orphaned := c.orphaned.Load(deployment.UID); orphaned {
		return 0, c.releaseSets(ctx, deployment, sets)
	}
	failure := c.deleteSets(ctx, sets)
	if outrun(failure) {
		return 0, failure
	}
	key, now := client.ObjectKeyFromObject(deployment), c.Clock.Now()
	if last, ok := c.counted.Load(key); ok && failure == nil {
		if wait := settle - now.Sub(last.(time.Time)); wait > 0 && wait <= settle {
			return wait, nil
		}
	}
	c.counted.Store(key, now)
	return 0, errors.Join(failure, c.writeStatus(ctx, deployment, leavingStatus(gather(deployment, sets, now), failure)))
}

func (c *Controller) deleteSets(ctx context.Context, sets []*v1alpha1.MachineSet) error {
	var failure error
	for _, set := range sets {
		if !set.DeletionTimestamp.IsZero() {
			continue
		}
		// The UID keeps a set of the same name that was made meanwhile. The version keeps one that
		// was taken from the deployment: caches of different kinds are not in step.
		as := client.Preconditions{UID: &set.UID, ResourceVersion: &set.ResourceVersion}
		if err := c.Client.Delete(ctx, set, as); expectations.UnlessGone(err) != nil {
			failure = errors.Join(failure, fmt.Errorf("deleting machine set %s: %w", set.Name, err))
		}
	}
	return failure
}

// leavingStatus is the status of a deployment that is being deleted. No Machine is wanted: those
// that are there and cannot be used are what is unavailable. No set is current, since all are
// leaving. What was said of the last rollout, and of sets that stay, is left as it is.
func leavingStatus(f facts, failure error) v1alpha1.MachineDeploymentStatus {
	was, next := f.deployment.Status, nextStatus(f, failure)
	next.UnavailableReplicas = max(0, next.Replicas-next.AvailableReplicas)
	for _, set := range f.old {
		if revision.Same(&set.Spec.Template, &f.deployment.Spec.Template) {
			next.UpdatedReplicas = plus(next.UpdatedReplicas, set.Status.Replicas)
		}
	}
	for _, kind := range []v1alpha1.MachineDeploymentConditionType{v1alpha1.MachineDeploymentProgressing, conditionReleased} {
		stored, at := conditionAt(was, kind), conditionAt(next, kind)
		switch {
		case stored < 0:
			dropCondition(&next, kind)
		case at < 0:
			next.Conditions = append(next.Conditions, was.Conditions[stored])
		default:
			next.Conditions[at] = was.Conditions[stored]
		}
	}
	if failure != nil {
		setCondition(&next, condition(v1alpha1.MachineDeploymentReplicaFailure, v1alpha1.ConditionTrue, reasonSetUpdateError, failure.Error()), f.now)
	}
	return next
}
