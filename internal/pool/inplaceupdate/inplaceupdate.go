// Package inplaceupdate reads from Machines and their Nodes how far updates in place are.
//
// The deployment makes nodes candidates and selects some of them. The machine controller drains a
// selected node, the agent on the node updates it and labels it with the result, and the deployment moves
// the Machine to its new set. Labels, conditions and their meaning are MCM's.
package inplaceupdate

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/noderef"
)

// State returns how far the update of a Machine's node is: the reason of the node's condition, of which
// the Machine has a copy. It is empty if the node was never a candidate.
func State(machine *v1alpha1.Machine) string {
	if condition := noderef.Condition(machine.Status.Conditions, v1alpha1.NodeInPlaceUpdate); condition != nil {
		return condition.Reason
	}
	return ""
}

// Updating reports whether a Machine is being updated: from when its node is drained until the result is
// known.
func Updating(machine *v1alpha1.Machine) bool {
	switch machine.Status.CurrentStatus.Phase {
	case v1alpha1.MachineInPlaceUpdating, v1alpha1.MachineInPlaceUpdateSuccessful:
		return true
	case v1alpha1.MachineFailed, v1alpha1.MachineInPlaceUpdateFailed, v1alpha1.MachineTerminating:
		return false
	}
	return underway(State(machine))
}

// Waits reports whether a Machine of an old set was updated, and waits for its deployment to move it. In the
// newest set it says so, too, of all that were updated before.
func Waits(machine *v1alpha1.Machine) bool {
	return machine.Status.CurrentStatus.Phase == v1alpha1.MachineRunning && State(machine) == v1alpha1.UpdateSuccessful
}

// Moved reports whether a Machine was updated and moved to its set, whose replicas may not count it yet.
func Moved(machine *v1alpha1.Machine) bool {
	return machine.Labels[v1alpha1.LabelKeyNodeUpdateResult] == v1alpha1.LabelValueNodeUpdateSuccessful
}

// Concerned reports whether a Machine takes part in an update, or came to its set by one that is not concluded.
func Concerned(machine *v1alpha1.Machine) bool {
	state := State(machine)
	return Moved(machine) || state != "" && state != v1alpha1.UpdateSuccessful || Failed(machine, nil)
}

// Manual reports whether users select the nodes of a deployment to update.
func Manual(deployment *v1alpha1.MachineDeployment) bool {
	update := deployment.Spec.Strategy.InPlaceUpdate
	return update != nil && update.OrchestrationType == v1alpha1.OrchestrationTypeManual
}

// CreatesNone reports whether a set has the label that keeps it from creating Machines.
func CreatesNone(set *v1alpha1.MachineSet) bool {
	_, ok := set.Labels[v1alpha1.LabelKeyMachineSetScaleUpDisabled]
	return ok
}

var setKind = v1alpha1.SchemeGroupVersion.WithKind("MachineSet")

// Transfer makes a set the controller of a Machine of another set, and gives it the labels of the set's
// template. The label of the result keeps the set from deleting Machines before its replicas count this
// one. As in MCM, the Machine keeps its spec, also the name of its class.
func Transfer(machine *v1alpha1.Machine, from, to *v1alpha1.MachineSet) {
	machine.OwnerReferences = slices.DeleteFunc(machine.OwnerReferences, func(owner metav1.OwnerReference) bool {
		return owner.UID == from.UID || owner.UID == to.UID
	})
	machine.OwnerReferences = append(machine.OwnerReferences, *metav1.NewControllerRef(to, setKind))
	for key := range from.Spec.Template.Labels {
		delete(machine.Labels, key)
	}
	if machine.Labels == nil {
		machine.Labels = map[string]string{}
	}
	maps.Copy(machine.Labels, to.Spec.Template.Labels)
	machine.Labels[v1alpha1.LabelKeyNodeUpdateResult] = v1alpha1.LabelValueNodeUpdateSuccessful
}

// Settle makes a Machine that was moved one like any other of its set.
func Settle(machine *v1alpha1.Machine) { delete(machine.Labels, v1alpha1.LabelKeyNodeUpdateResult) }

// Failed reports whether the update of a Machine failed. The node is nil if it is not known.
func Failed(machine *v1alpha1.Machine, node *corev1.Node) bool {
	return machine.Status.CurrentStatus.Phase == v1alpha1.MachineInPlaceUpdateFailed || Read(node).Result == v1alpha1.LabelValueNodeUpdateFailed
}

// Undergoing reports whether a Machine takes part in the update now, so that it counts as unavailable: its
// node is selected, being updated, or failed to be. The node is nil if it is not known.
func Undergoing(machine *v1alpha1.Machine, node *corev1.Node) bool {
	return Selected(node) || Updating(machine) || Failed(machine, node)
}

// Selected reports whether a node is selected for the update. A node that is not known is not.
func Selected(node *corev1.Node) bool { return Read(node).Selected }

// SelectedCandidate reports whether a node has both labels on which the machine controller drains it.
func SelectedCandidate(node *corev1.Node) bool {
	n := Read(node)
	return n.Selected && n.Candidate
}

// Selectable reports whether a node takes no part in an update, and has no result of one.
func Selectable(machine *v1alpha1.Machine, node *corev1.Node) bool {
	return !Undergoing(machine, node) && !Moved(machine) && Read(node).Result == ""
}

// Updated reports whether a node was updated, so that its Machine can move: the agent and the machine
// controller say so. The Machine's copy of the condition may be older or newer than the cached node. Until
// its phase says it, too, also after a failure, the machine controller needs the label of the result.
func Updated(machine *v1alpha1.Machine, node *corev1.Node) bool {
	switch machine.Status.CurrentStatus.Phase {
	case v1alpha1.MachineInPlaceUpdating, v1alpha1.MachineInPlaceUpdateFailed:
		return false
	}
	return Read(node).Succeeded() && (State(machine) == v1alpha1.UpdateSuccessful || Finished(node))
}

// Finished reports whether a node says that its last update succeeded. Its Machine may have an older copy of that.
func Finished(node *corev1.Node) bool {
	return Read(node).Condition.Reason == v1alpha1.UpdateSuccessful
}

// Behind reports whether a Machine says that its node was updated, which the cached node may not show yet.
func Behind(machine *v1alpha1.Machine, node *corev1.Node) bool {
	n := Read(node)
	return n.Selected && n.Result == "" && State(machine) == v1alpha1.UpdateSuccessful && !Updating(machine)
}

// Unanswered reports whether the node of a Machine that runs is a candidate, and has no condition of that update:
// no machine controller that updates in place has looked at it yet.
func Unanswered(machine *v1alpha1.Machine, node *corev1.Node) bool {
	n := Read(node)
	return n.Candidate && n.Result == "" && (n.Condition.Reason == "" || n.Condition.Reason == v1alpha1.UpdateSuccessful) &&
		machine.Status.CurrentStatus.Phase == v1alpha1.MachineRunning && !Moved(machine)
}

// Labelled reports whether a node has labels of an update.
func Labelled(node *corev1.Node) bool {
	return slices.ContainsFunc(labels, func(key string) bool { _, ok := node.Labels[key]; return ok })
}

// SameLabels reports whether two nodes have the same labels of an update.
func SameLabels(a, b *corev1.Node) bool {
	return !slices.ContainsFunc(labels, func(key string) bool {
		in, inA := a.Labels[key]
		other, inB := b.Labels[key]
		return inA != inB || in != other
	})
}

// Nominate makes a node a candidate, and selects it if wanted. The node's labels are changed.
func Nominate(node *corev1.Node, selected bool) {
	label := func(key string) {
		if node.Labels == nil {
			node.Labels = map[string]string{}
		}
		if selected || node.Labels[key] == "" {
			node.Labels[key] = labelled
		}
	}
	label(v1alpha1.LabelKeyNodeCandidateForUpdate)
	if selected {
		label(v1alpha1.LabelKeyNodeSelectedForUpdate)
	}
}

// Finish takes an updated node back into use, as MCM does: without labels of the update, schedulable, and
// with the taint that Gardener removes when the node's critical components are ready.
func Finish(node *corev1.Node) {
	Withdraw(node)
	delete(node.Annotations, v1alpha1.AnnotationKeyMachineUpdateFailedReason)
	node.Spec.Unschedulable = false
	taint := corev1.Taint{Key: v1alpha1.TaintKeyCriticalComponentsNotReady, Effect: corev1.TaintEffectNoSchedule}
	if !slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.MatchTaint(&taint) }) {
		node.Spec.Taints = append(node.Spec.Taints, taint)
	}
}

// Withdraw removes the labels of an update from a node that takes no part in one. A result that was left there
// would count for the next update.
func Withdraw(node *corev1.Node) {
	for _, key := range labels {
		delete(node.Labels, key)
	}
}
