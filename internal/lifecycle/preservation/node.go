package preservation

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/noderef"
)

// untilMessage ends the messages of the node condition, as in MCM.
const untilMessage = "Machine preserved until "

// Mark keeps autoscalers from removing the node, unless a user has said something about that. The node
// of a Machine that failed also gets a taint, in place of a cordon, which is left to users; another
// loses that taint.
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
		taint.TimeAdded = &at // a user's, who gave it no time, or a wrong one
	case !failed && taint != nil:
		untaint(node)
	}
}

// Unmark reverts Mark and, with unwish, removes the annotation that asks for preservation.
func Unmark(node *corev1.Node, unwish bool) {
	if _, ours := node.Annotations[v1alpha1.AnnotationKeyScaleDownDisabledByMCM]; ours {
		delete(node.Annotations, v1alpha1.AnnotationKeyScaleDownDisabled)
		delete(node.Annotations, v1alpha1.AnnotationKeyScaleDownDisabledByMCM)
	}
	if unwish {
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

// Drained reports whether the node was drained since it has the taint: from then on the condition is
// True only once that is done.
func Drained(node *corev1.Node) bool {
	taint, condition := taintOf(node), noderef.Condition(node.Status.Conditions, v1alpha1.NodePreserved)
	return taint != nil && taint.TimeAdded != nil && condition != nil && condition.Status == corev1.ConditionTrue &&
		!condition.LastTransitionTime.Before(taint.TimeAdded)
}

// Stopped reports whether the node says that its Machine is not preserved any more, or there is none.
func Stopped(node *corev1.Node) bool {
	if node == nil {
		return true
	}
	condition := noderef.Condition(node.Status.Conditions, v1alpha1.NodePreserved)
	return condition != nil && condition.Reason == v1alpha1.PreservationStopped
}

// Drain is how far the drain of a preserved node is.
type Drain string

const (
	// NotNeeded is the drain of a Machine that has not failed.
	NotNeeded Drain = ""
	// Done means that the node has just become empty.
	Done Drain = "done"
	// Earlier means that it did so before.
	Earlier Drain = "earlier"
	// Failing means that pods could not be evicted, which is tried again.
	Failing Drain = "failing"
)

// SetPreserved sets the condition of the node of a preserved Machine. It looks at the status only.
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

// SetStopped sets the condition of the node of a Machine that is not preserved any more. A node that
// never had it gets none.
func SetStopped(node *corev1.Node, now time.Time) {
	if noderef.Condition(node.Status.Conditions, v1alpha1.NodePreserved) == nil {
		return
	}
	setCondition(node, corev1.NodeCondition{Type: v1alpha1.NodePreserved, Status: corev1.ConditionFalse, Reason: v1alpha1.PreservationStopped}, now, false)
}

// setCondition sets a condition if it differs. anew renews its time although its status stays.
func setCondition(node *corev1.Node, next corev1.NodeCondition, now time.Time, anew bool) {
	known := noderef.Condition(node.Status.Conditions, v1alpha1.NodePreserved)
	next.LastTransitionTime = metav1.NewTime(now.Truncate(time.Second))
	if known == nil {
		node.Status.Conditions = append(node.Status.Conditions, next)
		return
	}
	if known.Status == next.Status && !anew {
		next.LastTransitionTime = known.LastTransitionTime
		if Same(*known, next) {
			return
		}
	}
	*known = next
}

// Same reports whether two conditions differ in nothing but their times.
func Same(a, b corev1.NodeCondition) bool {
	b.LastHeartbeatTime, b.LastTransitionTime = a.LastHeartbeatTime, a.LastTransitionTime
	return a == b
}
