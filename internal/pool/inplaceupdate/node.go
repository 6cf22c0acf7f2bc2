package inplaceupdate

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/noderef"
)

// labels are the labels of an update on a node: those of candidates and of selected nodes, and the result.
var labels = []string{v1alpha1.LabelKeyNodeCandidateForUpdate, v1alpha1.LabelKeyNodeSelectedForUpdate, v1alpha1.LabelKeyNodeUpdateResult}

// labelled is the value of the labels of candidates and of selected nodes.
const labelled = "true"

// Node is what a node says about its update.
type Node struct {
	// Candidate and Selected report whether the node has these labels. As in MCM, their value does not matter.
	Candidate, Selected bool
	// Result is the label with which the agent reports; empty if there is none.
	Result string
	// FailureReason is why the update failed, as the agent says; empty if it does not.
	FailureReason string
	// Condition is InPlaceUpdate; the zero value if there is none.
	Condition corev1.NodeCondition

	// labels are those of the node.
	labels map[string]string
}

// Read returns what a node says about its update. A nil node, which is not known, says nothing.
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

// Underway reports whether the update has begun and the agent has not reported yet.
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

// Problem is something wrong with the labels of a node. The zero value is no problem.
type Problem struct {
	// Message names the label and what is wrong with it, as a clause.
	Message string
	// Blocks reports whether the update does not continue until the label is corrected.
	Blocks bool
}

func problem(blocks bool, format string, args ...any) Problem {
	return Problem{Message: fmt.Sprintf(format, args...), Blocks: blocks}
}

// withoutEffect is the message about a label that needs another one.
const withoutEffect = "label %s has no effect without %s"

// Check returns the first problem with the labels of the node of a Machine. A Machine that was just moved to its set
// may have a node with the result of that update, and without the other labels.
func (n Node) Check(machine *v1alpha1.Machine) Problem {
	if wrong := n.wrongValue(); wrong != (Problem{}) {
		return wrong
	}
	switch {
	case n.Result == "" && n.Underway() && !(n.Candidate && n.Selected):
		return problem(false, "label %s or %s was removed while the node is updated: the update continues", labels[0], labels[1])
	case n.Selected && !n.Candidate:
		return problem(false, withoutEffect, labels[1], labels[0])
	case n.Result == "" || Moved(machine):
		return Problem{}
	}
	return n.misplacedResult()
}

// wrongValue returns the problem of a label whose value has no meaning.
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
