package capi

import (
	"context"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
)

// Claim is what a MillwrightMachine has on the VM with that ID.
func Claim(machine *infrav1.MillwrightMachine, providerID string) instance.Claimant {
	return instance.Claimant{
		Name:     fmt.Sprintf("MillwrightMachine %s", client.ObjectKeyFromObject(machine)),
		Certain:  machine.Status.ProviderID == providerID,
		Deleting: !machine.DeletionTimestamp.IsZero(),
		Since:    machine.CreationTimestamp.Time,
	}
}

// claim reports whether another object's claim counts against ours.
type claim func(ours, other instance.Claimant) bool

// earlier is the claim of one whose VM it is for certain, or that was there before.
func earlier(ours, other instance.Claimant) bool { return other.Before(ours) }

// alive is the claim of one that is not being deleted, unless the VM is ours for certain and
// it only names it.
func alive(ours, other instance.Claimant) bool {
	return !other.Deleting && (other.Certain || !ours.Certain)
}

// recorded is the claim of one whose VM it is for certain, while it is not ours.
func recorded(ours, other instance.Claimant) bool { return other.Certain && !ours.Certain }

// claimant names another owner of a VM whose claim counts; empty if there is none.
func (c *Controller) claimant(ctx context.Context, machine *infrav1.MillwrightMachine, providerID string, counts claim) (string, error) {
	if providerID == "" {
		return "", nil
	}
	list := &infrav1.MillwrightMachineList{}
	err := c.Client.List(ctx, list, client.MatchingFields{ByProviderID: providerID}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return "", fmt.Errorf("finding the owners of VM %s: %w", providerID, err)
	}
	ours := Claim(machine, providerID)
	for i := range list.Items {
		other := &list.Items[i]
		if claim := Claim(other, providerID); other.UID != machine.UID && counts(ours, claim) {
			return claim.Name, nil
		}
	}
	return c.claimantOfOtherFace(ctx, machine, providerID, counts)
}

// claimantOfOtherFace is the same for the objects of another API. Any of them counts while
// ours names no VM: then the driver has found this one by a name that both may have.
func (c *Controller) claimantOfOtherFace(ctx context.Context, machine *infrav1.MillwrightMachine, providerID string, counts claim) (string, error) {
	if c.Claimed == nil {
		return "", nil
	}
	others, err := c.Claimed(ctx, machine.Namespace, providerID)
	if err != nil {
		return "", err
	}
	ours := Claim(machine, providerID)
	for _, other := range others {
		if machine.Spec.ProviderID == "" || counts(ours, other) {
			return other.Name, nil
		}
	}
	return "", nil
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
