package balancer

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/internal/reconcile/apierror"
	"github.com/millwright-dev/millwright/internal/reconcile/expectations"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// report writes the condition LoadBalancerReady if it changed. It does nothing if the reason is empty, the object is
// paused, or another process is the leader.
func (c *Controller) report(ctx context.Context, infra *infrav1.MillwrightCluster, f facts, reason, message string) error {
	if f.paused || f.standby || reason == "" {
		return nil
	}
	status := metav1.ConditionFalse
	if reason == infrav1.ReasonForwarding {
		status = metav1.ConditionTrue
	}
	changed := infra.DeepCopy()
	meta.SetStatusCondition(&changed.Status.Conditions, metav1.Condition{
		Type: infrav1.ConditionLoadBalancerReady, Status: status, Reason: reason,
		ObservedGeneration: infra.Generation,
		Message:            messages.Shorten(message, maxMessage), LastTransitionTime: metav1.NewTime(c.Clock.Now()),
	})
	if equality.Semantic.DeepEqual(infra.Status, changed.Status) {
		return nil
	}
	if err := c.Client.Status().Patch(ctx, changed, expectations.Locked(infra)); apierror.IgnoreGone(err) != nil {
		return fmt.Errorf("patching the status of MillwrightCluster %s: %w", infra.Name, err)
	}
	return nil
}
