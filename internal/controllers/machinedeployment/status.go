package machinedeployment

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/rollout"
	"github.com/millwright-dev/millwright/internal/pool/rollout/status"
	"github.com/millwright-dev/millwright/internal/reconcile/apierror"
	"github.com/millwright-dev/millwright/internal/reconcile/edge"
	"github.com/millwright-dev/millwright/internal/reconcile/expectations"
)

// targetAway is the interval of passes while the target does not respond and nodes have to be marked, and while the
// labels of nodes must be corrected. Events of nodes do not always trigger a pass.
const targetAway = 5 * time.Second

// report writes the deployment's metadata, and then its status. If a rollout begins, it writes the status first,
// since the revision in the metadata identifies the set that the status describes.
func (p scope) report(ctx context.Context, r *rollout.Rollout, o rollout.Outcome) (requeueAfter time.Duration, err error) {
	after, begins := r.After(o), o.Created != nil || o.Reused(r)
	deployment := after.Deployment
	if o.Failure == nil && !begins {
		deployment, o.Failure = p.annotate(ctx, after, deployment)
	}
	if edge.Outdated(o.Failure) {
		return 0, o.Failure
	}
	next := status.Next(r, o)
	deployment, err = p.writeStatus(ctx, deployment, next)
	if err != nil {
		return 0, err
	}
	if o.Failure == nil && begins {
		if _, err := p.annotate(ctx, after, deployment); err != nil {
			return 0, err
		}
	}
	return nextPass(r, o, next), edge.Reported(errors.Join(o.Failure, o.MarkError()))
}

// nextPass returns the time until the next pass. If it is zero, only an event triggers one.
func nextPass(r *rollout.Rollout, o rollout.Outcome, next v1alpha1.MachineDeploymentStatus) (after time.Duration) {
	times := []time.Duration{r.ProtectedFor(), status.DeadlineIn(r.Deployment, next, r.Now), r.ResponseDeadlineIn(), r.RestoreEndsIn()}
	if r.TargetAway || o.NodesLater || r.Nodes != nil && (r.Nodes.Behind || r.Blocked() != "") {
		times = append(times, targetAway)
	}
	if r.Nodes != nil && r.Nodes.Stale || !r.Shown {
		times = append(times, expectations.StaleCache)
	}
	for _, in := range times {
		if after == 0 || in > 0 && in < after {
			after = in
		}
	}
	return after
}

// reasonsWithEvents contains the reasons of conditions that also cause an event, since users have to change something.
var reasonsWithEvents = []string{
	v1alpha1.DeploymentReasonInvalid, v1alpha1.DeploymentReasonSelectsAll, v1alpha1.DeploymentReasonNotSupported, v1alpha1.DeploymentReasonUpdateBlocked,
	v1alpha1.DeploymentReasonMutated, v1alpha1.DeploymentReasonMarkError, v1alpha1.DeploymentReasonSelectorOverlap,
}

// writeStatus writes the status if it differs from the stored one, and returns the deployment with it.
func (p scope) writeStatus(ctx context.Context, deployment *v1alpha1.MachineDeployment, next v1alpha1.MachineDeploymentStatus) (*v1alpha1.MachineDeployment, error) {
	stored := deployment.Status
	stored.Selector = next.Selector // pruned under MCM's CRDs, so its absence must not cause a write
	if stored.ExcessReplicas == 0 && deployment.Spec.ExcessReplicas == nil {
		stored.ExcessReplicas = next.ExcessReplicas // also pruned, unless the spec has its field
	}
	if equality.Semantic.DeepEqual(stored, next) {
		return deployment, nil
	}
	written := deployment.DeepCopy()
	written.Status = next
	if err := p.memory.deployment.PatchStatus(ctx, p.Client, written, deployment); err != nil {
		return deployment, apierror.IgnoreGone(fmt.Errorf("writing status of machine deployment %s: %w", deployment.Name, err))
	}
	for _, condition := range next.Conditions {
		if !slices.Contains(deployment.Status.Conditions, condition) && slices.Contains(reasonsWithEvents, condition.Reason) {
			p.Events.Event(written, corev1.EventTypeWarning, condition.Reason, condition.Message)
		}
	}
	return written, nil
}
