package virtualmachine

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/conditions"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/migration"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podspec"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podstate"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
)

// growDisks enlarges the claims of a VM whose spec was changed while its hypervisor is alive, and then has that enlarge
// the disks. While the VM migrates, its disks stay as they are.
func (c *Controller) growDisks(ctx context.Context, p *pass) flow.Result {
	if !podstate.Alive(p.active) || !podspec.Outdated(p.vm, p.active) || migration.UnderWay(&p.vm.Status) || conditions.Invalid(p.vm, c.settings) != nil {
		return flow.Continue()
	}
	growing, err := podspec.GrowingDisks(p.vm, p.active)
	if err != nil {
		return flow.Fail(err)
	}
	if podspec.Served(p.vm) {
		if len(growing) > 0 {
			p.noGrowth = conditions.Causef(conditions.ReasonCannotGrow, "Disks that a server serves grow when the virtual machine starts.")
		}
		return flow.Continue()
	}
	var ready []v1alpha1.DiskSize
	for _, disk := range growing {
		grown, err := c.grow(ctx, p, disk)
		if err != nil {
			return flow.Fail(err)
		}
		if grown {
			ready = append(ready, disk)
		}
	}
	if slices.Equal(ready, p.vm.Status.GrowDisks) {
		return flow.Continue()
	}
	err = c.registry.Update(ctx, p.vm, func(status *v1alpha1.VirtualMachineStatus) { status.GrowDisks = ready })
	c.hypervisors.Recheck(client.ObjectKeyFromObject(p.vm))
	return flow.Fail(err)
}

// grow enlarges the claim of a disk, and reports whether its volume has the size.
func (c *Controller) grow(ctx context.Context, p *pass, disk v1alpha1.DiskSize) (grown bool, err error) {
	name := p.vm.Status.VolumeClaimName
	if disk.Name != "" {
		name = podspec.DataClaimName(p.vm, disk.Name)
	}
	if name == "" {
		return false, nil // an ephemeral disk has no volume of its own
	}
	claim := &corev1.PersistentVolumeClaim{}
	err = c.Client.Get(ctx, client.ObjectKey{Namespace: p.vm.Namespace, Name: name}, claim)
	if err != nil || !podstate.Owns(p.vm, claim) {
		return false, client.IgnoreNotFound(err)
	}
	if err := c.growClaim(ctx, p, claim, disk); err != nil {
		return false, err
	}
	return claim.Status.Capacity.Storage().CmpInt64(disk.Bytes) >= 0, nil
}

// growClaim enlarges what a claim requests. That its storage refuses that is no failure: the pass says so.
func (c *Controller) growClaim(ctx context.Context, p *pass, claim *corev1.PersistentVolumeClaim, disk v1alpha1.DiskSize) error {
	if claim.Spec.Resources.Requests.Storage().CmpInt64(disk.Bytes) >= 0 {
		return nil
	}
	before := claim.DeepCopy()
	claim.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: *resource.NewQuantity(disk.Bytes, resource.BinarySI)}
	err := c.Client.Patch(ctx, claim, client.MergeFrom(before))
	if apierrors.IsForbidden(err) || apierrors.IsInvalid(err) {
		p.noGrowth = conditions.Causef(conditions.ReasonCannotGrow, "%s: the volume cannot grow: %s", podspec.DiskName(disk.Name), refusal(err))
		return nil
	}
	if err != nil {
		return fmt.Errorf("enlarging claim %s: %w", claim.Name, err)
	}
	return nil
}

// refusal returns the API server's sentence.
func refusal(err error) string {
	if status, is := errors.AsType[*apierrors.StatusError](err); is {
		return status.ErrStatus.Message
	}
	return err.Error()
}

// growBeforeStart enlarges the claim of a disk while there is no hypervisor. Its volume may follow while the next one
// runs.
func (c *Controller) growBeforeStart(ctx context.Context, p *pass, claim *corev1.PersistentVolumeClaim, name string, template *v1alpha1.VolumeClaimTemplate) error {
	if template == nil || claim.Status.Phase != corev1.ClaimBound {
		return nil
	}
	return c.growClaim(ctx, p, claim, v1alpha1.DiskSize{Name: name, Bytes: template.Spec.Resources.Requests.Storage().Value()})
}
