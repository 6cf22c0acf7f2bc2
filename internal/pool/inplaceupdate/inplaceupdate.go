// Package inplaceupdate determines the progress of in-place updates from Machines and their Nodes.
//
// The deployment makes nodes candidates and selects some of them. The machine controller drains a selected
// node. Then the agent of the node installs the update and labels the node with the result, and the deployment
// moves the Machine to its new set. The labels and conditions, and their meaning, are those of MCM.
package inplaceupdate

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/noderef"
)

// State returns the progress of the update of a Machine's node. It is the reason of the node's condition, which
// is copied to the Machine. It is empty if the node was never a candidate.
func State(machine *v1alpha1.Machine) string {
	if condition := noderef.Condition(machine.Status.Conditions, v1alpha1.NodeInPlaceUpdate); condition != nil {
		return condition.Reason
	}
	return ""
}

// Updating reports whether a Machine is being updated, from the start of its node's drain until the result is
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

// Waits reports whether a Machine of an old set was updated and waits for its deployment to move it. For the
// newest set, it also returns true for all Machines that were updated earlier.
func Waits(machine *v1alpha1.Machine) bool {
	return machine.Status.CurrentStatus.Phase == v1alpha1.MachineRunning && State(machine) == v1alpha1.UpdateSuccessful
}

// Moved reports whether a Machine was updated and moved to its set, whose replicas may not count it yet.
func Moved(machine *v1alpha1.Machine) bool {
	return machine.Labels[v1alpha1.LabelKeyNodeUpdateResult] == v1alpha1.LabelValueNodeUpdateSuccessful
}

// Concerned reports whether a Machine is part of an update, or was moved to its set by an update that is not
// settled.
func Concerned(machine *v1alpha1.Machine) bool {
	state := State(machine)
	return Moved(machine) || state != "" && state != v1alpha1.UpdateSuccessful || Failed(machine, nil)
}

// Manual reports whether users select the nodes of a deployment that are updated.
func Manual(deployment *v1alpha1.MachineDeployment) bool {
	update := deployment.Spec.Strategy.InPlaceUpdate
	return update != nil && update.OrchestrationType == v1alpha1.OrchestrationTypeManual
}

// CreatesNone reports whether a set has the label that prevents it from creating Machines.
func CreatesNone(set *v1alpha1.MachineSet) bool {
	_, ok := set.Labels[v1alpha1.LabelKeyMachineSetScaleUpDisabled]
	return ok
}

var setKind = v1alpha1.SchemeGroupVersion.WithKind("MachineSet")

// Transfer makes set to the controller of a Machine of set from, and gives the Machine the labels of the new
// template. The result label prevents the set from deleting Machines before its replicas count this one. As in
// MCM, the Machine keeps its spec, including its class name.
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

// Settle removes the result label of a moved Machine, so that it counts like any other of its set.
func Settle(machine *v1alpha1.Machine) { delete(machine.Labels, v1alpha1.LabelKeyNodeUpdateResult) }

// Failed reports whether the update of a Machine failed. The node is nil if it is unknown.
func Failed(machine *v1alpha1.Machine, node *corev1.Node) bool {
	return machine.Status.CurrentStatus.Phase == v1alpha1.MachineInPlaceUpdateFailed || Read(node).Result == v1alpha1.LabelValueNodeUpdateFailed
}

// Undergoing reports whether a Machine is part of the update now and counts as unavailable: its node is
// selected, is being updated, or failed to update. The node is nil if it is unknown.
func Undergoing(machine *v1alpha1.Machine, node *corev1.Node) bool {
	return Selected(node) || Updating(machine) || Failed(machine, node)
}

// Selected reports whether a node is selected for the update. It returns false for nil.
func Selected(node *corev1.Node) bool { return Read(node).Selected }

// SelectedCandidate reports whether a node has both labels that make the machine controller drain it.
func SelectedCandidate(node *corev1.Node) bool {
	n := Read(node)
	return n.Selected && n.Candidate
}

// Selectable reports whether a Machine's node is not part of an update and has no result of one.
func Selectable(machine *v1alpha1.Machine, node *corev1.Node) bool {
	return !Undergoing(machine, node) && !Moved(machine) && Read(node).Result == ""
}

// Updated reports whether a node was updated, so that its Machine can move. Both the agent and the machine
// controller must have reported that. The Machine's copy of the condition may be older or newer than the cached
// node. The machine controller needs the result label until the Machine's phase shows the result, also after a
// failure.
func Updated(machine *v1alpha1.Machine, node *corev1.Node) bool {
	switch machine.Status.CurrentStatus.Phase {
	case v1alpha1.MachineInPlaceUpdating, v1alpha1.MachineInPlaceUpdateFailed:
		return false
	}
	return Read(node).Succeeded() && (State(machine) == v1alpha1.UpdateSuccessful || Finished(node))
}

// Finished reports whether the node's condition shows that its last update succeeded. The Machine may have an
// older copy.
func Finished(node *corev1.Node) bool {
	return Read(node).Condition.Reason == v1alpha1.UpdateSuccessful
}

// Behind reports whether a Machine's status shows a completed update that the cached node may not show yet.
func Behind(machine *v1alpha1.Machine, node *corev1.Node) bool {
	n := Read(node)
	return n.Selected && n.Result == "" && State(machine) == v1alpha1.UpdateSuccessful && !Updating(machine)
}

// Unanswered reports whether a running Machine's node is a candidate without a condition of this update. If so,
// no machine controller that supports in-place updates has processed it yet.
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

// Nominate labels a node as a candidate and, if selected is true, as selected. It modifies the node.
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

// Finish returns an updated node to use, as MCM does: without the labels of the update, schedulable, and with
// the taint that Gardener removes when the node's critical components are ready. It also returns the node to load
// balancers.
func Finish(node *corev1.Node) {
	Withdraw(node)
	delete(node.Annotations, v1alpha1.AnnotationKeyMachineUpdateFailedReason)
	node.Spec.Unschedulable = false
	node.Spec.Taints = slices.DeleteFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == v1alpha1.TaintKeyToBeDeleted })
	taint := corev1.Taint{Key: v1alpha1.TaintKeyCriticalComponentsNotReady, Effect: corev1.TaintEffectNoSchedule}
	if !slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.MatchTaint(&taint) }) {
		node.Spec.Taints = append(node.Spec.Taints, taint)
	}
}

// Withdraw removes the labels of an update from a node that is not part of one. An old result would count for
// the next update.
func Withdraw(node *corev1.Node) {
	for _, key := range labels {
		delete(node.Labels, key)
	}
}
