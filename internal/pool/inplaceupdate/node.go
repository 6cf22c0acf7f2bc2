package inplaceupdate

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/noderef"
)

// labels are the labels of an update on a node, for candidates, for selected nodes, and for the result.
var labels = []string{v1alpha1.LabelKeyNodeCandidateForUpdate, v1alpha1.LabelKeyNodeSelectedForUpdate, v1alpha1.LabelKeyNodeUpdateResult}

// labelled is the value of the labels for candidates and for selected nodes.
const labelled = "true"

// Node is the state of an update as the labels, annotations and conditions of a node show it.
type Node struct {
	// Candidate and Selected report whether the node has these labels. As in MCM, their values do not matter.
	Candidate, Selected bool
	// Result is the label with which the agent reports the result. It is empty if there is none.
	Result string
	// FailureReason is the agent's reason for a failed update. It is empty if the agent reported none.
	FailureReason string
	// Condition is the condition InPlaceUpdate. It is the zero value if there is none.
	Condition corev1.NodeCondition

	// labels are all labels of the node.
	labels map[string]string
}

// Read returns the state of an update on a node. It returns the zero value for nil.
func Read(node *corev1.Node) Node {
	if node == nil {
		return Node{}
	}
	n := Node{
		Result: node.Labels[v1alpha1.LabelKeyNodeUpdateResult], FailureReason: node.Annotations[v1alpha1.AnnotationKeyMachineUpdateFailedReason],
		labels: node.Labels,
	}
	_, n.Candidate = node.Labels[v1alpha1.LabelKeyNodeCandidateForUpdate]
	_, n.Selected = node.Labels[v1alpha1.LabelKeyNodeSelectedForUpdate]
	n.Condition = ptr.Deref(noderef.Condition(node.Status.Conditions, v1alpha1.NodeInPlaceUpdate), n.Condition)
	return n
}

// Succeeded reports whether the agent has reported success.
func (n Node) Succeeded() bool { return n.Result == v1alpha1.LabelValueNodeUpdateSuccessful }

// Underway reports whether the update has begun and the agent has not reported a result yet.
func (n Node) Underway() bool { return underway(n.Condition.Reason) }

func underway(reason string) bool {
	switch reason {
	case v1alpha1.SelectedForUpdate, v1alpha1.DrainSuccessful, v1alpha1.ReadyForUpdate:
		return true
	}
	return false
}

// early reports whether the agent could not have updated the node yet.
func (n Node) early() bool {
	switch n.Condition.Reason {
	case "", v1alpha1.CandidateForUpdate, v1alpha1.SelectedForUpdate, v1alpha1.DrainSuccessful:
		return true
	}
	return false
}

// Problem is a problem with the labels of a node. The zero value means that there is none.
type Problem struct {
	// Message is a clause that names the label and the problem.
	Message string
	// Blocks reports whether the update cannot continue until the label is corrected.
	Blocks bool
}

func problem(blocks bool, format string, args ...any) Problem {
	return Problem{Message: fmt.Sprintf(format, args...), Blocks: blocks}
}

// withoutEffect is the message about a label that requires another one.
const withoutEffect = "label %s has no effect without %s"

// Check returns the first problem with the labels of a Machine's node. The node of a Machine that was just
// moved to its set may have the result label without the other labels.
func (n Node) Check(machine *v1alpha1.Machine) Problem {
	if wrong := n.wrongValue(); wrong != (Problem{}) {
		return wrong
	}
	switch {
	case n.Result == "" && n.Underway() && !(n.Candidate && n.Selected):
		return problem(false, "label %s or %s was removed during the node's update; the update continues", labels[0], labels[1])
	case n.Selected && !n.Candidate:
		return problem(false, withoutEffect, labels[1], labels[0])
	case n.Result == "" || Moved(machine):
		return Problem{}
	}
	return n.misplacedResult()
}

// wrongValue returns the problem of a label with an invalid value.
func (n Node) wrongValue() Problem {
	for _, key := range labels[:2] {
		if value, ok := n.labels[key]; ok && value != labelled {
			return problem(true, "label %s is %q, not %q", key, value, labelled)
		}
	}
	if _, reported := n.labels[labels[2]]; reported && !n.Succeeded() && n.Result != v1alpha1.LabelValueNodeUpdateFailed {
		return problem(true, "label %s is %q, neither %q nor %q", labels[2], n.Result, v1alpha1.LabelValueNodeUpdateSuccessful, v1alpha1.LabelValueNodeUpdateFailed)
	}
	return Problem{}
}

// misplacedResult returns the problem of a result that the agent cannot have reported.
func (n Node) misplacedResult() Problem {
	switch {
	case !n.Candidate && !n.Underway():
		return problem(true, withoutEffect, labels[2], labels[0])
	case !n.Selected:
		return problem(true, "label %s is set, but the node was not selected", labels[2])
	case n.early():
		return problem(false, "label %s is set, but the node was not ready for its update", labels[2])
	}
	return Problem{}
}
