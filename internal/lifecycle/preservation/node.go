package preservation

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/noderef"
)

// untilMessage begins the last sentence of the condition's message, as in MCM.
const untilMessage = "Machine preserved until "

// Mark prevents autoscalers from removing the node, unless a user has set the annotation. If failed is true, it
// also taints the node. A taint is used instead of a cordon, which is left to users. If failed is false, it
// removes the taint.
func Mark(node *corev1.Node, failed bool, now time.Time) {
	if _, users := node.Annotations[v1alpha1.AnnotationKeyScaleDownDisabled]; !users {
		metav1.SetMetaDataAnnotation(&node.ObjectMeta, v1alpha1.AnnotationKeyScaleDownDisabled, "true")
		metav1.SetMetaDataAnnotation(&node.ObjectMeta, v1alpha1.AnnotationKeyScaleDownDisabledByMCM, "true")
	}
	at := metav1.NewTime(now.Truncate(time.Second))
	switch taint := taintOf(node); {
	case failed && taint == nil:
		node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: v1alpha1.TaintKeyPreserved, Effect: corev1.TaintEffectNoSchedule, TimeAdded: &at})
	case failed && (taint.TimeAdded == nil || taint.TimeAdded.After(now)):
		taint.TimeAdded = &at // set by a user without a valid time
	case !failed && taint != nil:
		untaint(node)
	}
}

// Unmark reverts Mark. If removeAnnotation is true, it also removes the annotation that requests preservation.
func Unmark(node *corev1.Node, removeAnnotation bool) {
	if _, ours := node.Annotations[v1alpha1.AnnotationKeyScaleDownDisabledByMCM]; ours {
		delete(node.Annotations, v1alpha1.AnnotationKeyScaleDownDisabled)
		delete(node.Annotations, v1alpha1.AnnotationKeyScaleDownDisabledByMCM)
	}
	if removeAnnotation {
		delete(node.Annotations, v1alpha1.AnnotationKeyPreserve)
	}
	if taintOf(node) != nil {
		untaint(node)
	}
}

func untaint(node *corev1.Node) {
	node.Spec.Taints = slices.DeleteFunc(node.Spec.Taints, func(taint corev1.Taint) bool { return taint.Key == v1alpha1.TaintKeyPreserved })
}

func taintOf(node *corev1.Node) *corev1.Taint {
	at := slices.IndexFunc(node.Spec.Taints, func(taint corev1.Taint) bool { return taint.Key == v1alpha1.TaintKeyPreserved })
	if at < 0 {
		return nil
	}
	return &node.Spec.Taints[at]
}

// Drained reports whether the node was drained after it was tainted. From then on, the condition is True only
// when the drain is complete.
func Drained(node *corev1.Node) bool {
	taint, condition := taintOf(node), noderef.Condition(node.Status.Conditions, v1alpha1.NodePreserved)
	return taint != nil && taint.TimeAdded != nil && condition != nil && condition.Status == corev1.ConditionTrue &&
		!condition.LastTransitionTime.Before(taint.TimeAdded)
}

// Stopped reports whether the node's condition shows that its Machine is no longer preserved. It returns true
// for nil.
func Stopped(node *corev1.Node) bool {
	if node == nil {
		return true
	}
	condition := noderef.Condition(node.Status.Conditions, v1alpha1.NodePreserved)
	return condition != nil && condition.Reason == v1alpha1.PreservationStopped
}

// Drain is the progress of the drain of a preserved node.
type Drain string

const (
	// NotNeeded means that the Machine has not failed.
	NotNeeded Drain = ""
	// Done means that the drain has just completed.
	Done Drain = "done"
	// Earlier means that the drain completed before.
	Earlier Drain = "earlier"
	// Failing means that Pods could not be evicted. The drain is retried.
	Failing Drain = "failing"
)

// SetPreserved sets the condition on the node of a preserved Machine. It uses only the node's status.
func SetPreserved(node *corev1.Node, p Plan, drain Drain, now time.Time) {
	condition := corev1.NodeCondition{Type: v1alpha1.NodePreserved, Status: corev1.ConditionTrue, Reason: v1alpha1.PreservedByUser}
	if p.Value == AutoPreserved {
		condition.Reason = v1alpha1.PreservedByMCM
	}
	until := untilMessage + p.Expiry.UTC().Format("2006-01-02 15:04:05 -0700 MST") + "."
	condition.Message = until
	switch drain {
	case Done, Earlier:
		condition.Message = v1alpha1.PreservedNodeDrainSuccessful + " " + until
	case Failing:
		condition.Status, condition.Message = corev1.ConditionFalse, v1alpha1.PreservedNodeDrainUnsuccessful+" "+until
	}
	setCondition(node, condition, now, drain == Done)
}

// SetStopped sets the condition on the node of a Machine that is no longer preserved. It does not add the
// condition to a node that never had it.
func SetStopped(node *corev1.Node, now time.Time) {
	if noderef.Condition(node.Status.Conditions, v1alpha1.NodePreserved) == nil {
		return
	}
	setCondition(node, corev1.NodeCondition{Type: v1alpha1.NodePreserved, Status: corev1.ConditionFalse, Reason: v1alpha1.PreservationStopped}, now, false)
}

// setCondition sets a condition if it differs. If renew is true, it updates the transition time even if the
// status is unchanged.
func setCondition(node *corev1.Node, next corev1.NodeCondition, now time.Time, renew bool) {
	known := noderef.Condition(node.Status.Conditions, v1alpha1.NodePreserved)
	next.LastTransitionTime = metav1.NewTime(now.Truncate(time.Second))
	if known == nil {
		node.Status.Conditions = append(node.Status.Conditions, next)
		return
	}
	if known.Status == next.Status && !renew {
		next.LastTransitionTime = known.LastTransitionTime
		if Same(*known, next) {
			return
		}
	}
	*known = next
}

// Same reports whether two conditions are equal except for their times.
func Same(a, b corev1.NodeCondition) bool {
	b.LastHeartbeatTime, b.LastTransitionTime = a.LastHeartbeatTime, a.LastTransitionTime
	return a == b
}
