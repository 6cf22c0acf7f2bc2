package virtualmachine

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/ptr"
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
		p.claim = p.vm.Name
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
	return c.awaitVolume(ctx, p, claim)
}

// createClaim creates the claim, unless the VM had one with data: a guest must never get an
// empty disk instead.
func (c *Controller) createClaim(ctx context.Context, p *pass) flow.Result {
	template := p.vm.Spec.VolumeClaimTemplate
	used := p.vm.Status.VolumeClaimName != "" && (p.vm.Status.ImagePrepared || p.vm.Spec.InitialImage == nil)
	if used && !podspec.ReplacesDisk(p.vm) || template == nil {
		return p.blocked(causef(v1alpha1.ReasonVolumeLost, "persistent volume claim %s, the disk, is gone", p.claim))
	}
	claim := podspec.Claim(p.vm, p.claim)
	err := c.Client.Create(ctx, claim)
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
	if claim.Status.Phase == corev1.ClaimBound {
		return flow.Continue()
	}
	if name := ptr.Deref(claim.Spec.StorageClassName, ""); name != "" {
		class := &storagev1.StorageClass{}
		if err := c.APIReader.Get(ctx, client.ObjectKey{Name: name}, class); client.IgnoreNotFound(err) != nil {
			return flow.Fail(fmt.Errorf("reading storage class %s: %w", name, err))
		}
		if ptr.Deref(class.VolumeBindingMode, "") == storagev1.VolumeBindingWaitForFirstConsumer {
			return flow.Continue()
		}
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
