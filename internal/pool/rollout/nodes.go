package rollout

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/preservation"
	"github.com/millwright-dev/millwright/internal/pool/counts"
	"github.com/millwright-dev/millwright/internal/pool/inplaceupdate"
)

// NodeChange is a node as it is in the cache and as it should be. New has no status.
type NodeChange struct{ Old, New *corev1.Node }

// planNodes marks the nodes of a rollout: nodes of old sets so that Pods avoid them, and all nodes so that
// autoscalers do not remove them. When the rollout is complete, it removes the marks. For an in-place update,
// it also selects nodes and returns updated ones to use.
func planNodes(r *Rollout) []Operation {
	if r.Nodes == nil || r.Deployment.Spec.Paused {
		return nil
	}
	marks, selected := r.MarksNodes, r.selection()
	ofOld := changed(r.Nodes.OfOld, func(n Node, node *corev1.Node) {
		if marks && !slices.ContainsFunc(node.Spec.Taints, isOurTaint) {
			node.Spec.Taints = append(node.Spec.Taints, ourTaint)
		}
		if marks && r.inPlace {
			updateOld(n, node, selected[n.Machine.Name])
		}
		protect(r, n, node)
	})
	ofCurrent := changed(r.Nodes.OfCurrent, func(n Node, node *corev1.Node) {
		node.Spec.Taints = slices.DeleteFunc(node.Spec.Taints, isOurTaint)
		if r.inPlace {
			updateCurrent(n, node)
		}
		protect(r, n, node)
	})
	var operations []Operation
	if len(ofOld) > 0 {
		operations = append(operations, patchOld(r, ofOld, selected))
	}
	if len(ofCurrent) > 0 {
		op := Operation{Action: PatchNodes, Nodes: ofCurrent, Reason: countNodes(ofCurrent) + " of new machines updated during the rollout"}
		if !marks {
			op.Reason, op.Topic = "Unmarked "+countNodes(ofCurrent)+": the rollout is complete", v1alpha1.DeploymentReasonNodesUnmarked
		}
		operations = append(operations, op)
	}
	return operations
}

// patchOld returns the operation that changes nodes of old sets. The nodes of the selected Machines are updated
// in place.
func patchOld(r *Rollout, nodes []NodeChange, selected map[string]bool) Operation {
	what := "replaced"
	if r.inPlace {
		what = "updated in place"
	}
	op := Operation{Action: PatchNodes, Nodes: nodes, Reason: fmt.Sprintf("Marked %s of machines that will be %s", countNodes(nodes), what)}
	unmarked := func(set *v1alpha1.MachineSet) bool {
		return counts.Desired(set) > 0 && set.Annotations[v1alpha1.AnnotationKeyPreferNoSchedule] == ""
	}
	switch {
	case !r.MarksNodes:
		op.Reason = "Unmarked " + countNodes(nodes) + " of machines whose preservation expired after the rollout"
	case len(selected) > 0:
		op.Topic, op.Reason = v1alpha1.DeploymentReasonNodesSelected, "Selected for an in-place update: "+strings.Join(slices.Sorted(maps.Keys(selected)), ", ")
	case slices.ContainsFunc(r.Old, unmarked):
		op.Topic = v1alpha1.DeploymentReasonNodesMarked // no event was recorded yet
	}
	return op
}

// updateOld makes the node of an old set a candidate, and selects it if selected is true. If an update moved
// its Machine to this set and the template changed since, that update is finished first.
func updateOld(n Node, node *corev1.Node, selected bool) {
	if inplaceupdate.Moved(n.Machine) && node.Labels[v1alpha1.LabelKeyNodeUpdateResult] != "" {
		inplaceupdate.Finish(node)
	}
	inplaceupdate.Nominate(node, selected)
}

// updateCurrent returns an updated node of the current set to use. If a node was selected before its set became
// the current one, its update is completed, because its drain may have begun. Other nodes stop being
// candidates.
func updateCurrent(n Node, node *corev1.Node) {
	switch {
	case inplaceupdate.Updated(n.Machine, n.Node), inplaceupdate.Moved(n.Machine) && inplaceupdate.Labelled(node):
		inplaceupdate.Finish(node)
	case inplaceupdate.Updating(n.Machine) && n.Machine.Status.CurrentStatus.Phase != v1alpha1.MachineInPlaceUpdateSuccessful && !inplaceupdate.Finished(n.Node):
		inplaceupdate.Nominate(node, false) // a finished node keeps that phase or an old condition for a while
	case !inplaceupdate.Failed(n.Machine, n.Node) && !inplaceupdate.SelectedCandidate(node):
		inplaceupdate.Withdraw(node)
	}
}

func countNodes(nodes []NodeChange) string {
	if len(nodes) == 1 {
		return "1 node"
	}
	return fmt.Sprintf("%d nodes", len(nodes))
}

// changed returns the nodes that the given function changes.
func changed(nodes []Node, change func(Node, *corev1.Node)) []NodeChange {
	var result []NodeChange
	var node corev1.Node // reused: most nodes need no change, and they are large
	for _, n := range nodes {
		node = *n.Node
		node.Annotations, node.Labels, node.Spec.Taints = maps.Clone(node.Annotations), maps.Clone(node.Labels), slices.Clone(node.Spec.Taints)
		change(n, &node)
		if !maps.Equal(node.Annotations, n.Node.Annotations) || !maps.Equal(node.Labels, n.Node.Labels) ||
			node.Spec.Unschedulable != n.Node.Spec.Unschedulable || !slices.EqualFunc(node.Spec.Taints, n.Node.Spec.Taints, SameTaint) {
			node.Status = corev1.NodeStatus{} // the status does not change and is most of a node
			result = append(result, NodeChange{n.Node, node.DeepCopy()})
		}
	}
	return result
}

// protect prevents autoscalers from removing a node during the rollout, and while its Machine is preserved. It
// does not change an annotation that a user set.
func protect(r *Rollout, n Node, node *corev1.Node) {
	_, users := node.Annotations[v1alpha1.AnnotationKeyScaleDownDisabled]
	switch {
	case r.MarksNodes && r.Nodes.Protect && !users:
		metav1.SetMetaDataAnnotation(&node.ObjectMeta, v1alpha1.AnnotationKeyScaleDownDisabled, "true")
		metav1.SetMetaDataAnnotation(&node.ObjectMeta, v1alpha1.AnnotationKeyScaleDownDisabledByMCM, "true")
	case r.RolledOut && protected(node) && !preservation.Active(n.Machine, r.Now):
		delete(node.Annotations, v1alpha1.AnnotationKeyScaleDownDisabled)
		delete(node.Annotations, v1alpha1.AnnotationKeyScaleDownDisabledByMCM)
	}
}

// protected reports whether a rollout prevents autoscalers from removing a node.
func protected(node *corev1.Node) bool {
	_, ours := node.Annotations[v1alpha1.AnnotationKeyScaleDownDisabledByMCM]
	return ours
}

// NodesUnmarked reports whether the rollout is complete, no node has marks or labels of an in-place update, and
// the plan changes no nodes.
func (r *Rollout) NodesUnmarked(plan []Operation) bool {
	patches := func(op Operation) bool { return op.Action == PatchNodes }
	marked := func(n Node) bool { return protected(n.Node) || r.inPlace && inplaceupdate.Labelled(n.Node) }
	return r.Nodes != nil && !r.Nodes.Stale && r.RolledOut && !slices.ContainsFunc(plan, patches) &&
		!slices.ContainsFunc(r.Nodes.OfOld, marked) && !slices.ContainsFunc(r.Nodes.OfCurrent, marked)
}

// ProtectedFor returns the time until the first preservation expires that keeps a node protected beyond the
// rollout. It returns 0 if there is none.
func (r *Rollout) ProtectedFor() time.Duration {
	if r.Nodes == nil || !r.RolledOut {
		return 0
	}
	var first time.Duration
	for _, n := range slices.Concat(r.Nodes.OfOld, r.Nodes.OfCurrent) {
		expiry := n.Machine.Status.CurrentStatus.PreserveExpiryTime
		if expiry == nil || !protected(n.Node) || !expiry.After(r.Now) {
			continue
		}
		if left := expiry.Sub(r.Now); first == 0 || left < first {
			first = left
		}
	}
	return first
}

// ourTaint is on the nodes of old sets during a rolling update.
var ourTaint = corev1.Taint{Key: v1alpha1.TaintKeyPreferNoSchedule, Value: isTrue, Effect: corev1.TaintEffectPreferNoSchedule}

func isOurTaint(taint corev1.Taint) bool { return taint.MatchTaint(&ourTaint) }

// SameTaint reports whether two taints are equal, ignoring the time when they were added.
func SameTaint(a, b corev1.Taint) bool { return a.MatchTaint(&b) && a.Value == b.Value }
