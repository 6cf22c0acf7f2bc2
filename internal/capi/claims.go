package capi

import (
	"context"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
)

// claim judges another MillwrightMachine that has the same provider ID.
type claim func(ours, other *infrav1.MillwrightMachine, providerID string) bool

// earlier is the claim of one whose VM it is for certain, or that was there before.
func earlier(ours, other *infrav1.MillwrightMachine, providerID string) bool {
	if recorded := other.Status.ProviderID == providerID; recorded != (ours.Status.ProviderID == providerID) {
		return recorded
	}
	if !ours.CreationTimestamp.Equal(&other.CreationTimestamp) {
		return other.CreationTimestamp.Before(&ours.CreationTimestamp)
	}
	return client.ObjectKeyFromObject(other).String() < client.ObjectKeyFromObject(ours).String()
}

// alive is the claim of one that is not being deleted.
func alive(_, other *infrav1.MillwrightMachine, _ string) bool {
	return other.DeletionTimestamp.IsZero()
}

// recorded is the claim of one whose VM it is for certain, while it is not ours.
func recorded(ours, other *infrav1.MillwrightMachine, providerID string) bool {
	return other.Status.ProviderID == providerID && ours.Status.ProviderID != providerID
}

// claimant names another owner of a VM whose claim counts; empty if there is none.
func (c *Controller) claimant(ctx context.Context, machine *infrav1.MillwrightMachine, providerID string, counts claim) (string, error) {
	if providerID == "" {
		return "", nil
	}
	list := &infrav1.MillwrightMachineList{}
	err := c.Client.List(ctx, list, client.MatchingFields{byProviderID: providerID}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return "", fmt.Errorf("finding the owners of VM %s: %w", providerID, err)
	}
	for i := range list.Items {
		if other := &list.Items[i]; other.UID != machine.UID && counts(machine, other, providerID) {
			return fmt.Sprintf("MillwrightMachine %s", client.ObjectKeyFromObject(other)), nil
		}
	}
	if c.Claimed == nil {
		return "", nil
	}
	return c.Claimed(ctx, machine.Namespace, providerID)
}

// whose says whose the VM is, if it is not for this object to have; empty if it is. Without
// that, deleting one of the two would take the VM from the other.
func (c *Controller) whose(ctx context.Context, machine *infrav1.MillwrightMachine, providerID string, counts claim) (string, error) {
	other, err := c.claimant(ctx, machine, providerID, counts)
	if err != nil || other == "" {
		return "", err
	}
	return fmt.Sprintf("VM %s is that of %s already", providerID, other), nil
}
