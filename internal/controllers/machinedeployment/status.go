package machinedeployment

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/reconcile/apierror"
)

// warned are the reasons of conditions that get an event, too: what keeps a deployment from being
// worked on, or from being worked on as its user may expect.
var warned = []string{
	v1alpha1.DeploymentReasonInvalid, v1alpha1.DeploymentReasonSelectsAll, v1alpha1.DeploymentReasonNotSupported,
	v1alpha1.DeploymentReasonMutated, v1alpha1.DeploymentReasonMarkError, v1alpha1.DeploymentReasonSelectorOverlap,
}

// writeStatus writes the status if it differs from what is stored, and returns the deployment with it.
// Each condition that is new or has changed gets its event.
func (p pass) writeStatus(ctx context.Context, deployment *v1alpha1.MachineDeployment, next v1alpha1.MachineDeploymentStatus) (*v1alpha1.MachineDeployment, error) {
	stored := deployment.Status
	stored.Selector = next.Selector // pruned under MCM's CRDs, so its absence must not cause a write
	if equality.Semantic.DeepEqual(stored, next) {
		return deployment, nil
	}
	written := deployment.DeepCopy()
	written.Status = next
	if err := p.memory.deployment.PatchStatus(ctx, p.Client, written, deployment); err != nil {
		return deployment, apierror.IgnoreGone(fmt.Errorf("status of machine deployment %s: %w", deployment.Name, err))
	}
	for _, condition := range next.Conditions {
		if !slices.Contains(deployment.Status.Conditions, condition) && slices.Contains(warned, condition.Reason) {
			p.Events.Event(written, corev1.EventTypeWarning, condition.Reason, condition.Message)
		}
	}
	return written, nil
}
