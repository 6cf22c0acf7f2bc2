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
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/migration"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podspec"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podstate"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
)

// growDisks enlarges the claims of a VM whose spec was changed while its hypervisor is alive. The hypervisor then
// enlarges the disks. Disks do not grow during a migration.
func (v *volumes) growDisks(ctx context.Context, s *scope) flow.Result {
	if !podstate.Alive(s.active) || !podspec.Outdated(s.vm, s.active) || migration.UnderWay(&s.vm.Status) || invalid(s.vm, v.settings()) != nil {
		return flow.Continue()
	}
	growing, err := podspec.GrowingDisks(s.vm, s.active)
	if err != nil {
		return flow.Fail(err)
	}
	if podspec.Served(s.vm) {
		if len(growing) > 0 {
			s.noGrowth = causef(reasonCannotGrow, "Disks with diskAccess Served grow when the virtual machine restarts.")
		}
		return flow.Continue()
	}
	var ready []v1alpha1.DiskSize
	for _, disk := range growing {
		grown, err := v.grow(ctx, s, disk)
		if err != nil {
			return flow.Fail(err)
		}
		if grown {
			ready = append(ready, disk)
		}
	}
	if slices.Equal(ready, s.vm.Status.GrowDisks) {
		return flow.Continue()
	}
	err = v.registry.Update(ctx, s.vm, func(status *v1alpha1.VirtualMachineStatus) { status.GrowDisks = ready })
	v.hypervisors.Recheck(client.ObjectKeyFromObject(s.vm))
	return flow.Fail(err)
}

// grow enlarges the claim of a disk, and reports whether its volume has reached the requested size.
func (v *volumes) grow(ctx context.Context, s *scope, disk v1alpha1.DiskSize) (grown bool, err error) {
	name := s.vm.Status.VolumeClaimName
	if disk.Name != "" {
		name = podspec.DataClaimName(s.vm, disk.Name)
	}
	if name == "" {
		return false, nil // an ephemeral disk has no volume of its own
	}
	claim := &corev1.PersistentVolumeClaim{}
	err = v.client.Get(ctx, client.ObjectKey{Namespace: s.vm.Namespace, Name: name}, claim)
	if err != nil || !podstate.Owns(s.vm, claim) {
		return false, client.IgnoreNotFound(err)
	}
	if err := v.growClaim(ctx, s, claim, disk); err != nil {
		return false, err
	}
	return claim.Status.Capacity.Storage().CmpInt64(disk.Bytes) >= 0, nil
}

// growClaim enlarges the storage request of a claim. If the API server refuses the change, growClaim sets s.noGrowth
// and returns nil.
func (v *volumes) growClaim(ctx context.Context, s *scope, claim *corev1.PersistentVolumeClaim, disk v1alpha1.DiskSize) error {
	if claim.Spec.Resources.Requests.Storage().CmpInt64(disk.Bytes) >= 0 {
		return nil
	}
	before := claim.DeepCopy()
	claim.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: *resource.NewQuantity(disk.Bytes, resource.BinarySI)}
	err := v.client.Patch(ctx, claim, client.MergeFrom(before))
	if apierrors.IsForbidden(err) || apierrors.IsInvalid(err) {
		s.noGrowth = causef(reasonCannotGrow, "The volume of %s cannot grow: %s", podspec.DiskName(disk.Name), refusal(err))
		return nil
	}
	if err != nil {
		return fmt.Errorf("enlarging claim %s: %w", claim.Name, err)
	}
	return nil
}

// refusal returns the API server's message in an error.
func refusal(err error) string {
	if status, is := errors.AsType[*apierrors.StatusError](err); is {
		return status.ErrStatus.Message
	}
	return err.Error()
}

// growBeforeStart enlarges the claim of a disk while there is no hypervisor. The volume may grow later, while the
// next hypervisor is running.
func (v *volumes) growBeforeStart(ctx context.Context, s *scope, claim *corev1.PersistentVolumeClaim, name string, template *v1alpha1.VolumeClaimTemplate) error {
	if template == nil || claim.Status.Phase != corev1.ClaimBound {
		return nil
	}
	return v.growClaim(ctx, s, claim, v1alpha1.DiskSize{Name: name, Bytes: template.Spec.Resources.Requests.Storage().Value()})
}
