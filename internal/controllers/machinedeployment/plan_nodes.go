package machinedeployment

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/preservation"
)

// Reasons of events about nodes, which are ours.
const (
	reasonNodesMarked   = "NodesMarked"
	reasonNodesUnmarked = "NodesUnmarked"
)

// nodeChange is a node as it is, which is the cache's, and as it shall be, without its status.
type nodeChange struct{ is, shall *corev1.Node }

// marking reports whether a rolling update goes on, during which nodes are marked.
func marking(f facts) bool { return f.rolling && !f.deployment.Spec.Paused && !replaced(f) }

// unmarking reports whether the current set was an old one, whose nodes were tainted.
func unmarking(f facts) bool {
	return f.current != nil && f.current.Annotations[v1alpha1.AnnotationKeyPreferNoSchedule] != ""
}

// planNodes marks the nodes of a rolling update: pods shall rather not go to those of old
// sets, and autoscalers shall remove none. When it is over, the marks go.
func planNodes(f facts) []operation {
	if f.nodes == nil || f.deployment.Spec.Paused {
		return nil
	}
	protect := protection(f)
	ofOld := changed(f.nodes.ofOld, func(n nodeOf, node *corev1.Node) {
		if marking(f) {
			taint(node)
		}
		protect(n, node)
	})
	ofCurrent := changed(f.nodes.ofCurrent, func(n nodeOf, node *corev1.Node) {
		untaint(node)
		protect(n, node)
	})
	var operations []operation
	if len(ofOld) > 0 {
		operations = append(operations, operation{action: patchNodes, nodes: ofOld, topic: onceTainted(f), reason: many(ofOld, "of machines that will be replaced")})
	}
	if len(ofCurrent) > 0 {
		reason, topic := many(ofCurrent, "of new machines, during the rollout"), ""
		if !marking(f) {
			reason, topic = many(ofCurrent, "released: the rollout is over"), reasonNodesUnmarked
		}
		operations = append(operations, operation{action: patchNodes, nodes: ofCurrent, topic: topic, reason: reason})
	}
	return operations
}

// onceTainted is the topic of the event about the taints of old sets, if there was none yet.
func onceTainted(f facts) string {
	untold := slices.ContainsFunc(f.old, func(set *v1alpha1.MachineSet) bool {
		return asked(set) > 0 && set.Annotations[v1alpha1.AnnotationKeyPreferNoSchedule] == ""
	})
	if !untold {
		return ""
	}
	return reasonNodesMarked
}

func many(nodes []nodeChange, what string) string {
	if len(nodes) == 1 {
		return "1 node " + what
	}
	return fmt.Sprintf("%d nodes %s", len(nodes), what)
}

// changed returns the nodes that a change makes a difference to, with it.
func changed(nodes []nodeOf, change func(nodeOf, *corev1.Node)) []nodeChange {
	var result []nodeChange
	var node corev1.Node // one for all: most need no change, and nodes are large
	for _, n := range nodes {
		node = *n.node
		node.Annotations, node.Spec.Taints = maps.Clone(node.Annotations), slices.Clone(node.Spec.Taints)
		change(n, &node)
		if !maps.Equal(node.Annotations, n.node.Annotations) || !slices.EqualFunc(node.Spec.Taints, n.node.Spec.Taints, sameTaint) {
			node.Status = corev1.NodeStatus{} // it stays, and is most of a node
			result = append(result, nodeChange{n.node, node.DeepCopy()})
		}
	}
	return result
}

// protection is what the rollout does about autoscalers: it keeps them off while it lasts.
// A node whose machine is preserved stays protected, and what a user said is left alone.
func protection(f facts) func(nodeOf, *corev1.Node) {
	return func(n nodeOf, node *corev1.Node) {
		_, users := node.Annotations[v1alpha1.AnnotationKeyScaleDownDisabled]
		_, ours := node.Annotations[v1alpha1.AnnotationKeyScaleDownDisabledByMCM]
		switch {
		case marking(f) && f.nodes.protect && !users:
			metav1.SetMetaDataAnnotation(&node.ObjectMeta, v1alpha1.AnnotationKeyScaleDownDisabled, "true")
			metav1.SetMetaDataAnnotation(&node.ObjectMeta, v1alpha1.AnnotationKeyScaleDownDisabledByMCM, "true")
		case rolledOut(f) && ours && !preservation.Active(n.machine, f.now):
			delete(node.Annotations, v1alpha1.AnnotationKeyScaleDownDisabled)
			delete(node.Annotations, v1alpha1.AnnotationKeyScaleDownDisabledByMCM)
		}
	}
}

func sameTaint(a, b corev1.Taint) bool { return a.MatchTaint(&b) && a.Value == b.Value }

func ourTaint(taint corev1.Taint) bool {
	return taint.Key == v1alpha1.TaintKeyPreferNoSchedule && taint.Effect == corev1.TaintEffectPreferNoSchedule
}

func taint(node *corev1.Node) {
	if !slices.ContainsFunc(node.Spec.Taints, ourTaint) {
		node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{
			Key: v1alpha1.TaintKeyPreferNoSchedule, Value: isTrue, Effect: corev1.TaintEffectPreferNoSchedule,
		})
	}
}

func untaint(node *corev1.Node) {
	node.Spec.Taints = slices.DeleteFunc(node.Spec.Taints, ourTaint)
}
