package virtualmachine

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/internal/reconcile/flow"
)

// awaitVolume waits until the claim has its volume, unless that comes with the Pod. To the
// scheduler a Pod whose claim has none is one that fits nowhere, and whoever made the VM
// could take that for a lack of hosts.
func (c *Controller) awaitVolume(ctx context.Context, p *pass, claim *corev1.PersistentVolumeClaim) flow.Result {
	if claim.Status.Phase == corev1.ClaimBound {
		return flow.Continue()
	}
	late, err := c.bindsLate(ctx, claim)
	if err != nil {
		return flow.Fail(err)
	}
	if late {
		return flow.Continue()
	}
	return p.hold(problemf(reasonVolumePending, "persistent volume claim %s has no volume yet", claim.Name))
}

// bindsLate reports whether a claim gets its volume once a Pod with it has a host.
func (c *Controller) bindsLate(ctx context.Context, claim *corev1.PersistentVolumeClaim) (bool, error) {
	name := claim.Spec.StorageClassName
	if name == nil || *name == "" {
		return false, nil
	}
	class := &storagev1.StorageClass{}
	err := c.APIReader.Get(ctx, client.ObjectKey{Name: *name}, class)
	if client.IgnoreNotFound(err) != nil {
		return false, fmt.Errorf("reading storage class %s: %w", *name, err)
	}
	late := class.VolumeBindingMode != nil && *class.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer
	return err == nil && late, nil
}
