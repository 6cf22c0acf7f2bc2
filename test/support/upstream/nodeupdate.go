package upstream

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// updateResult is the label with the result of an in-place update.
const updateResult = v1alpha1.LabelKeyNodeUpdateResult

// updated reports whether the agent of a node has reported success.
func updated(node *corev1.Node) bool {
	return node.Labels[updateResult] == v1alpha1.LabelValueNodeUpdateSuccessful
}

// updateReason is the progress of a node's update.
func updateReason(node *corev1.Node) string {
	at := slices.IndexFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == v1alpha1.NodeInPlaceUpdate })
	if at < 0 {
		return ""
	}
	return node.Status.Conditions[at].Reason
}

// inPlace performs one step of a node's update. Failed updates were not recorded.
func (c *machineController) inPlace(ctx context.Context, all *objects, machine *v1alpha1.Machine) (bool, error) {
	node := all.nodes[machine.Labels[v1alpha1.NodeLabelKey]]
	if node == nil || node.Labels[v1alpha1.LabelKeyNodeCandidateForUpdate] == "" {
		return false, nil
	}
	if machine.Status.CurrentStatus.Phase == v1alpha1.MachineInPlaceUpdating {
		return c.updating(ctx, machine, node)
	}
	selected := node.Labels[v1alpha1.LabelKeyNodeSelectedForUpdate] != ""
	switch reason := updateReason(node); {
	case reason == "", reason == v1alpha1.UpdateSuccessful && !updated(node):
		return c.updateReason(ctx, node, v1alpha1.CandidateForUpdate)
	case reason == v1alpha1.CandidateForUpdate && selected:
		return c.updateReason(ctx, node, v1alpha1.SelectedForUpdate)
	case reason == v1alpha1.SelectedForUpdate:
		return c.cordon(ctx, machine, node)
	case updated(node) && machine.Status.CurrentStatus.Phase == v1alpha1.MachineRunning && reason != v1alpha1.UpdateSuccessful:
		return c.updateReason(ctx, node, v1alpha1.UpdateSuccessful)
	}
	return false, nil
}

// updating performs one step of an update whose node is drained.
func (c *machineController) updating(ctx context.Context, machine *v1alpha1.Machine, node *corev1.Node) (bool, error) {
	reason := updateReason(node)
	switch {
	case updated(node):
		return c.updateStatus(ctx, machine, func() {
			setState(machine, v1alpha1.MachineInPlaceUpdateSuccessful, v1alpha1.MachineOperationInPlaceUpdate, v1alpha1.MachineStateSuccessful, fmt.Sprintf("Machine %s successfully updated dependencies", machine.Name))
		})
	case reason == v1alpha1.SelectedForUpdate:
		return c.updateReason(ctx, node, v1alpha1.DrainSuccessful)
	case reason == v1alpha1.DrainSuccessful:
		return c.updateReason(ctx, node, v1alpha1.ReadyForUpdate)
	}
	return c.updateStatus(ctx, machine, func() { machine.Status.Conditions = slices.Clone(node.Status.Conditions) })
}

// cordon prepares a node without Pods.
func (c *machineController) cordon(ctx context.Context, machine *v1alpha1.Machine, node *corev1.Node) (bool, error) {
	wrote, err := c.update(ctx, node, func() { node.Spec.Unschedulable = true })
	if wrote || err != nil {
		return wrote, err
	}
	return c.updateStatus(ctx, machine, func() {
		setState(machine, v1alpha1.MachineInPlaceUpdating, v1alpha1.MachineOperationInPlaceUpdate, v1alpha1.MachineStateProcessing, fmt.Sprintf("Machine %s is undergoing an in-place update", machine.Name))
	})
}

// updateReason sets the node's condition InPlaceUpdate.
func (c *machineController) updateReason(ctx context.Context, node *corev1.Node, reason string) (bool, error) {
	return c.updateStatus(ctx, node, func() {
		next := corev1.NodeCondition{Type: v1alpha1.NodeInPlaceUpdate, Status: corev1.ConditionTrue, Reason: reason, LastTransitionTime: metav1.Now()}
		others := slices.DeleteFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == next.Type })
		node.Status.Conditions = append(others, next)
	})
}
