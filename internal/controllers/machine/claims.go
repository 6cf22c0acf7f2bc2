package machine

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
	"github.com/millwright-dev/millwright/internal/reconcile/fieldindex"
)

// others finds the Machines besides this one that have the provider ID.
func (c *Controller) others(ctx context.Context, machine *v1alpha1.Machine, providerID string) ([]*v1alpha1.Machine, error) {
	if providerID == "" {
		return nil, nil
	}
	list := &v1alpha1.MachineList{}
	err := c.Client.List(ctx, list, client.InNamespace(machine.Namespace),
		client.MatchingFields{fieldindex.MachineByProviderID: providerID}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, fmt.Errorf("finding the machines of VM %s: %w", providerID, err)
	}
	var others []*v1alpha1.Machine
	for i := range list.Items {
		if list.Items[i].UID != machine.UID {
			others = append(others, &list.Items[i])
		}
	}
	return others, nil
}

// taken says whose the VM is, if it is that of a Machine that was there before, or of an
// object of another API; empty if it is not. Without that, deleting one of the two would take
// the VM from the other.
func (c *Controller) taken(ctx context.Context, machine *v1alpha1.Machine, providerID string) (string, error) {
	others, err := c.others(ctx, machine, providerID)
	if err != nil {
		return "", err
	}
	for _, other := range others {
		if before(other, machine) {
			return fmt.Sprintf("VM %s is that of machine %q already", providerID, other.Name), nil
		}
	}
	other, err := c.claimant(ctx, machine.Namespace, providerID, func(other instance.Claimant) bool {
		// A Machine that names no VM was given this one for a name that both may have.
		return machine.Spec.ProviderID == "" || other.Before(Claim(machine))
	})
	if err != nil || other == "" {
		return "", err
	}
	return fmt.Sprintf("VM %s is that of %s already", providerID, other), nil
}

// Claim is what a Machine has on the VM that it names.
func Claim(machine *v1alpha1.Machine) instance.Claimant {
	return instance.Claimant{
		Name:     fmt.Sprintf("Machine %s", client.ObjectKeyFromObject(machine)),
		Certain:  established(machine),
		Deleting: !machine.DeletionTimestamp.IsZero(),
		Since:    machine.CreationTimestamp.Time,
	}
}

// claimant names an object of another API that names a VM and whose claim counts; empty if
// there is none.
func (c *Controller) claimant(ctx context.Context, namespace, providerID string, counts func(instance.Claimant) bool) (string, error) {
	if c.Claimed == nil || providerID == "" {
		return "", nil
	}
	others, err := c.Claimed(ctx, namespace, providerID)
	if err != nil {
		return "", err
	}
	for _, other := range others {
		if counts(other) {
			return other.Name, nil
		}
	}
	return "", nil
}

// sharer names another object that has the Machine's VM and is to keep it; empty if there is
// none.
func (c *Controller) sharer(ctx context.Context, machine *v1alpha1.Machine) (string, error) {
	others, err := c.others(ctx, machine, machine.Spec.ProviderID)
	if err != nil {
		return "", err
	}
	for _, other := range others {
		if other.DeletionTimestamp.IsZero() {
			return fmt.Sprintf("machine %q", other.Name), nil
		}
	}
	return c.claimant(ctx, machine.Namespace, machine.Spec.ProviderID, func(other instance.Claimant) bool { return !other.Deleting })
}

// rival finds the Machine that a node rather belongs to, although this one names the node
// too; nil if there is none. Without that the two would take the node from each other
// without end, and the deletion of one would take it from the other.
func (c *Controller) rival(ctx context.Context, machine *v1alpha1.Machine, node *corev1.Node) (*v1alpha1.Machine, error) {
	list := &v1alpha1.MachineList{}
	err := c.Client.List(ctx, list, client.InNamespace(machine.Namespace),
		client.MatchingFields{fieldindex.MachineByNode: node.Name}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, fmt.Errorf("finding the machines of node %s: %w", node.Name, err)
	}
	for i := range list.Items {
		if other := &list.Items[i]; other.UID != machine.UID && rather(other, machine, node) {
			return other, nil
		}
	}
	return nil, nil
}

// rather reports whether a node is the first Machine's rather than the second's: by the VM
// that the node says it is, failing that by which Machine was there first.
func rather(first, second *v1alpha1.Machine, node *corev1.Node) bool {
	if id := node.Spec.ProviderID; id != "" && (first.Spec.ProviderID == id) != (second.Spec.ProviderID == id) {
		return first.Spec.ProviderID == id
	}
	return before(first, second)
}

// before tells which of two Machines was there first.
func before(a, b *v1alpha1.Machine) bool {
	if !a.CreationTimestamp.Equal(&b.CreationTimestamp) {
		return a.CreationTimestamp.Before(&b.CreationTimestamp)
	}
	return a.Name < b.Name
}

// staleNode says so if the name of the new VM's node is that of a node which was there
// before the Machine: some clouds give the names of VMs that are gone to new ones. The
// kubelet could not join under that name, and whoever takes the node for the Machine's
// would drain and delete what is not its own.
func (c *Controller) staleNode(ctx context.Context, machine *v1alpha1.Machine, found instance.Instance) (string, error) {
	if c.Target == nil || !c.Target.Ready() || found.NodeName == "" || found.NodeName == machine.Name {
		return "", nil
	}
	node := &corev1.Node{}
	if err := c.Target.Client().Get(ctx, client.ObjectKey{Name: found.NodeName}, node); err != nil {
		if apierrors.IsNotFound(err) {
			return "", nil
		}
		return "", fmt.Errorf("reading node %s: %w", found.NodeName, err)
	}
	switch {
	case node.Labels[v1alpha1.LabelKeyMachineName] == machine.Name,
		found.ProviderID != "" && node.Spec.ProviderID == found.ProviderID,
		!node.CreationTimestamp.Before(&machine.CreationTimestamp):
		return "", nil
	}
	return fmt.Sprintf("VM using old node obj: node %q is older than machine %q", node.Name, machine.Name), nil
}
