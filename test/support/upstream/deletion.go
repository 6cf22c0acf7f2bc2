package upstream

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
)

// The messages by which MCM recognizes the next step of a deletion, in the order in which it searches for them.
const (
	markStatus    = "Set machine status to termination. Now, getting VM Status"
	markDrain     = "Initiate node drain"
	markVM        = "Initiate VM deletion"
	markNode      = "Initiate node object deletion"
	markFinalizer = "Initiate machine object finalizer removal"
)

// deletion performs the step that the status names. If the status names none, the deletion starts from the
// beginning.
func (c *machineController) deletion(ctx context.Context, all *objects, machine *v1alpha1.Machine) (bool, error) {
	if !slices.Contains(machine.Finalizers, v1alpha1.FinalizerMCM) {
		return false, nil
	}
	output := machine.Status.LastOperation.Description
	if machine.Status.CurrentStatus.Phase == v1alpha1.MachineTerminating {
		for _, next := range []struct {
			mark string
			take step
		}{{markStatus, c.findNode}, {markDrain, c.drain}, {markVM, c.deleteVM}, {markNode, c.deleteNode}, {markFinalizer, c.release}} {
			if strings.Contains(output, next.mark) {
				return next.take(ctx, all, machine)
			}
		}
	}
	return c.updateStatus(ctx, machine, func() {
		setState(machine, v1alpha1.MachineTerminating, v1alpha1.MachineOperationDelete, v1alpha1.MachineStateProcessing, markStatus)
		machine.Status.CurrentStatus.PreserveExpiryTime = nil
	})
}

// next writes the next step. The phase does not change.
func (c *machineController) next(ctx context.Context, machine *v1alpha1.Machine, sentence string) (bool, error) {
	return c.updateStatus(ctx, machine, func() {
		machine.Status.LastOperation = v1alpha1.LastOperation{
			Description: sentence, LastUpdateTime: metav1.Now(), State: v1alpha1.MachineStateProcessing, Type: v1alpha1.MachineOperationDelete,
		}
	})
}

func (c *machineController) findNode(ctx context.Context, all *objects, machine *v1alpha1.Machine) (bool, error) {
	if machine.Labels[v1alpha1.NodeLabelKey] != "" {
		return c.next(ctx, machine, markDrain)
	}
	class, secret, err := c.request(ctx, all, machine)
	if err != nil {
		return false, err
	}
	found, err := c.driver.GetMachineStatus(ctx, &driver.GetMachineStatusRequest{Machine: machine, MachineClass: class, Secret: secret})
	switch {
	case status.Code(err) == codes.NotFound:
		return c.next(ctx, machine, "VM was not found at provider. Moving forward to node drain. "+markDrain)
	case err != nil:
		return false, err
	}
	return c.update(ctx, machine, func() { metav1.SetMetaDataLabel(&machine.ObjectMeta, v1alpha1.NodeLabelKey, found.NodeName) })
}

// drain marks the node as being deleted. It does not check whether the node has Pods.
func (c *machineController) drain(ctx context.Context, all *objects, machine *v1alpha1.Machine) (bool, error) {
	node := all.nodes[machine.Labels[v1alpha1.NodeLabelKey]]
	if node == nil {
		return c.next(ctx, machine, "Skipping drain as nodeName is not a valid one for machine. "+markVM)
	}
	wrote, err := c.updateStatus(ctx, node, func() {
		if !slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == "Terminating" }) {
			node.Status.Conditions = append(node.Status.Conditions, corev1.NodeCondition{
				Type: "Terminating", Status: corev1.ConditionTrue, Reason: "ScaleDown", Message: "Machine Controller is scaling down machine", LastTransitionTime: metav1.Now(),
			})
		}
	})
	if wrote || err != nil {
		return wrote, err
	}
	wrote, err = c.update(ctx, node, func() { node.Spec.Unschedulable = true })
	if wrote || err != nil {
		return wrote, err
	}
	return c.next(ctx, machine, "Drain successful. "+markVM)
}

func (c *machineController) deleteVM(ctx context.Context, all *objects, machine *v1alpha1.Machine) (bool, error) {
	class, secret, err := c.request(ctx, all, machine)
	if err != nil {
		return false, err
	}
	_, err = c.driver.DeleteMachine(ctx, &driver.DeleteMachineRequest{Machine: machine, MachineClass: class, Secret: secret})
	if err != nil && status.Code(err) != codes.NotFound {
		return false, err
	}
	return c.next(ctx, machine, "VM deletion was successful. "+markNode)
}

func (c *machineController) deleteNode(ctx context.Context, all *objects, machine *v1alpha1.Machine) (bool, error) {
	name := machine.Labels[v1alpha1.NodeLabelKey]
	if name == "" {
		return c.next(ctx, machine, fmt.Sprintf("Label %q not present on machine %q, continuing deletion flow. %s", v1alpha1.NodeLabelKey, machine.Name, markFinalizer))
	}
	if node := all.nodes[name]; node != nil {
		if _, err := c.patchFinalizers(ctx, node); err != nil {
			return true, err
		}
		if err := c.remove(ctx, node); err != nil {
			return true, err
		}
	}
	return c.next(ctx, machine, fmt.Sprintf("Deletion of Node Object %q is successful. %s", name, markFinalizer))
}

func (c *machineController) release(ctx context.Context, _ *objects, machine *v1alpha1.Machine) (bool, error) {
	return c.update(ctx, machine, func() { hold(machine, v1alpha1.FinalizerMCM, false) })
}
