package virtualmachine

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podspec"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podstate"
	"github.com/millwright-dev/millwright/internal/reconcile/expectations"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
)

// ensureClaim creates the claim of the disk. An empty name of the claim means that the
// disk is ephemeral.
func (c *Controller) ensureClaim(ctx context.Context, p *pass) flow.Result {
	p.claim = p.vm.Status.VolumeClaimName
	if p.claim == "" && p.vm.Spec.VolumeClaimTemplate != nil {
		claims, err := c.claims(ctx, p)
		switch {
		case err != nil:
			return flow.Fail(err)
		case len(claims) > 1:
			return p.blocked(unknownDisk(claims))
		case len(claims) == 1:
			p.claim = claims[0].Name // the status was lost
		default:
			p.claim = p.vm.Name
		}
	}
	if p.claim == "" {
		return flow.Continue()
	}
	claim := &corev1.PersistentVolumeClaim{}
	err := c.APIReader.Get(ctx, client.ObjectKey{Namespace: p.vm.Namespace, Name: p.claim}, claim)
	switch {
	case apierrors.IsNotFound(err):
		return c.createClaim(ctx, p)
	case err != nil:
		return flow.Fail(fmt.Errorf("reading claim %s: %w", p.claim, err))
	case !podstate.Owns(p.vm, claim):
		return p.blocked(causef(reasonClaimTaken, "persistent volume claim %s exists and is not of this virtual machine", p.claim))
	case !claim.DeletionTimestamp.IsZero():
		return p.blocked(causef(v1alpha1.ReasonVolumeLost, "persistent volume claim %s, the disk, is being deleted", p.claim))
	}
	if err := c.growBeforeStart(ctx, p, claim, "", p.vm.Spec.VolumeClaimTemplate); err != nil {
		return flow.Fail(err)
	}
	return c.awaitVolume(ctx, p, claim)
}

// claims returns the claims of a VM that are not being deleted, but for those of data disks.
func (c *Controller) claims(ctx context.Context, p *pass) ([]corev1.PersistentVolumeClaim, error) {
	list := &corev1.PersistentVolumeClaimList{}
	err := c.Client.List(ctx, list, client.InNamespace(p.vm.Namespace), client.MatchingFields{indexOwner: string(p.vm.UID)})
	if err != nil {
		return nil, fmt.Errorf("listing claims: %w", err)
	}
	return slices.DeleteFunc(list.Items, func(claim corev1.PersistentVolumeClaim) bool {
		return !claim.DeletionTimestamp.IsZero() || podspec.IsDataClaim(p.vm, &claim)
	}), nil
}

// named returns the names of claims.
func named(claims []corev1.PersistentVolumeClaim) string {
	var names []string
	for _, claim := range claims {
		names = append(names, claim.Name)
	}
	slices.Sort(names)
	return strings.Join(names, " and ")
}

// unknownDisk is the cause if the status was lost amid a migration: only it knew which disk has the data.
func unknownDisk(claims []corev1.PersistentVolumeClaim) *cause {
	return causef(reasonDiskUnknown, "the status was lost during a migration; of the persistent volume claims %s delete the one that is not the disk",
		named(claims))
}

// createClaim creates the claim, unless the VM had one with data, or has another one that may be its
// disk: a guest must never get an empty disk instead.
func (c *Controller) createClaim(ctx context.Context, p *pass) flow.Result {
	template := p.vm.Spec.VolumeClaimTemplate
	others, err := c.claims(ctx, p)
	if err != nil {
		return flow.Fail(err)
	}
	others = slices.DeleteFunc(others, func(claim corev1.PersistentVolumeClaim) bool { return claim.Name == p.claim })
	if len(others) > 0 && !podspec.ReplacesDisk(p.vm) {
		return p.blocked(causef(v1alpha1.ReasonVolumeLost,
			"persistent volume claim %s, the disk, is gone, and there is %s; if that is the disk, write its name into status.volumeClaimName", p.claim, named(others)))
	}
	used := p.vm.Status.VolumeClaimName != "" && (p.vm.Status.ImagePrepared || p.vm.Spec.InitialImage == nil)
	if used && !podspec.ReplacesDisk(p.vm) || template == nil {
		return p.blocked(causef(v1alpha1.ReasonVolumeLost, "persistent volume claim %s, the disk, is gone", p.claim))
	}
	claim := podspec.Claim(p.vm, p.claim)
	err = c.Client.Create(ctx, claim)
	if apierrors.IsAlreadyExists(err) {
		return flow.Wait(expectations.StaleCache, "the claim was just created")
	}
	if err != nil {
		return flow.Fail(fmt.Errorf("creating claim %s: %w", p.claim, err))
	}
	return c.awaitVolume(ctx, p, claim)
}

// awaitVolume waits until the claim is bound, unless it is bound with the Pod: an
// unschedulable Pod would look like a lack of hosts.
func (c *Controller) awaitVolume(ctx context.Context, p *pass, claim *corev1.PersistentVolumeClaim) flow.Result {
	usable, err := c.hasVolume(ctx, claim)
	if err != nil {
		return flow.Fail(err)
	}
	if usable {
		return flow.Continue()
	}
	if claim.Spec.StorageClassName == nil {
		return p.blocked(causef(reasonVolumePending, "persistent volume claim %s has no volume yet, and no storage class: spec.volumeClaimTemplate names none, and the cluster has no default", claim.Name))
	}
	return p.blocked(causef(reasonVolumePending, "persistent volume claim %s has no volume yet", claim.Name))
}

// deleteClaims waits until the disks of a VM that is being deleted are gone.
func (c *Controller) deleteClaims(ctx context.Context, p *pass) flow.Result {
	list := &corev1.PersistentVolumeClaimList{}
	if err := c.APIReader.List(ctx, list, client.InNamespace(p.vm.Namespace), ofVM(p.vm)); err != nil {
		return flow.Fail(fmt.Errorf("listing claims: %w", err))
	}
	waiting := false
	for i := range list.Items {
		claim := &list.Items[i]
		if !podstate.Owns(p.vm, claim) {
			continue
		}
		waiting = true
		if !claim.DeletionTimestamp.IsZero() {
			continue
		}
		if err := c.Client.Delete(ctx, claim, client.Preconditions{UID: &claim.UID}); client.IgnoreNotFound(err) != nil {
			return flow.Fail(fmt.Errorf("deleting claim %s: %w", claim.Name, err))
		}
	}
	if waiting {
		return flow.Wait(goneCheck, "the end of the disk")
	}
	return flow.Continue()
}
