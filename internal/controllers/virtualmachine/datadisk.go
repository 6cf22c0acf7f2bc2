package virtualmachine

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podspec"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podstate"
	"github.com/millwright-dev/millwright/internal/reconcile/expectations"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
)

// ensureDataClaims creates the claims of the data disks.
func (c *Controller) ensureDataClaims(ctx context.Context, p *pass) flow.Result {
	for i := range p.vm.Spec.DataDisks {
		disk := &p.vm.Spec.DataDisks[i]
		if result := c.ensureDataClaim(ctx, p, disk); result.Ends() {
			return result
		}
	}
	return flow.Continue()
}

func (c *Controller) ensureDataClaim(ctx context.Context, p *pass, disk *v1alpha1.DataDisk) flow.Result {
	name := podspec.DataClaimName(p.vm, disk.Name)
	claim := &corev1.PersistentVolumeClaim{}
	err := c.APIReader.Get(ctx, client.ObjectKey{Namespace: p.vm.Namespace, Name: name}, claim)
	switch {
	case apierrors.IsNotFound(err):
		return c.createDataClaim(ctx, p, disk)
	case err != nil:
		return flow.Fail(fmt.Errorf("reading claim %s: %w", name, err))
	case !podstate.Owns(p.vm, claim):
		return p.blocked(causef(reasonClaimTaken, "spec.dataDisks[%s]: persistent volume claim %s exists and is not of this virtual machine", disk.Name, name))
	case name == p.claim:
		return p.blocked(causef(reasonClaimTaken, "spec.dataDisks[%s]: persistent volume claim %s is the disk from which the virtual machine starts; choose another name", disk.Name, name))
	case !claim.DeletionTimestamp.IsZero():
		return p.blocked(causef(v1alpha1.ReasonVolumeLost, "persistent volume claim %s, data disk %s, is being deleted", name, disk.Name))
	}
	if err := c.growBeforeStart(ctx, p, claim, disk.Name, &disk.VolumeClaimTemplate); err != nil {
		return flow.Fail(err)
	}
	return c.awaitVolume(ctx, p, claim)
}

// createDataClaim creates the claim of a data disk, unless that may have had data.
func (c *Controller) createDataClaim(ctx context.Context, p *pass, disk *v1alpha1.DataDisk) flow.Result {
	known := podspec.DataDiskStatus(&p.vm.Status, disk.Name)
	used := known != nil && (known.Prepared || disk.InitialImage == nil)
	if used && !podspec.ReplacesDisk(p.vm) {
		return p.blocked(causef(v1alpha1.ReasonVolumeLost, "persistent volume claim %s, data disk %s, is gone", known.VolumeClaimName, disk.Name))
	}
	claim := podspec.DataClaim(p.vm, disk)
	err := c.Client.Create(ctx, claim)
	if apierrors.IsAlreadyExists(err) {
		return flow.Wait(expectations.StaleCache, "the claim was just created")
	}
	if err != nil {
		return flow.Fail(fmt.Errorf("creating claim %s: %w", claim.Name, err))
	}
	return c.awaitVolume(ctx, p, claim)
}
