package virtualmachine

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podspec"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podstate"
	"github.com/millwright-dev/millwright/internal/reconcile/apierror"
	"github.com/millwright-dev/millwright/internal/reconcile/expectations"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
)

// volumes keeps the claims of the disks of VMs.
type volumes struct{ *cluster }

// ownDisk is a disk of a VM, for the steps that give it a claim.
type ownDisk struct {
	// name of a data disk. Empty for the root disk.
	name string
	// field is the prefix of messages about the spec of the disk, what names the disk in other messages, and status is
	// the field with its claim.
	field, what, status string
	// template of its claim. If nil, a lost claim cannot be created again.
	template *v1alpha1.VolumeClaimTemplate
	// known is its claim in the status; empty if the status has none. Then its claim gets the name first.
	known, first string
	// used reports whether the claim in the status may have data.
	used bool
}

// mode returns whether the disk is a file or a block device according to the spec.
func (d ownDisk) mode() corev1.PersistentVolumeMode {
	if d.template == nil {
		return corev1.PersistentVolumeFilesystem
	}
	return podspec.ModeOf(&d.template.Spec)
}

func rootDisk(vm *v1alpha1.VirtualMachine) ownDisk {
	return ownDisk{
		what: "the disk", status: "status.volumeClaimName", template: vm.Spec.VolumeClaimTemplate,
		known: vm.Status.VolumeClaimName, first: vm.Name,
		used: vm.Status.VolumeClaimName != "" && (vm.Status.ImagePrepared || vm.Spec.InitialImage == nil),
	}
}

func dataDiskOf(vm *v1alpha1.VirtualMachine, disk *v1alpha1.DataDisk) ownDisk {
	d := ownDisk{
		name: disk.Name, field: fmt.Sprintf("spec.dataDisks[%s]: ", disk.Name), what: podspec.DiskName(disk.Name), status: "status.dataDisks",
		template: &disk.VolumeClaimTemplate, first: podspec.DataClaimName(vm, disk.Name),
	}
	if known := podspec.DataDiskStatus(&vm.Status, disk.Name); known != nil {
		d.known, d.used = known.VolumeClaimName, known.Prepared || disk.InitialImage == nil
	}
	return d
}

// ensureClaim creates the claim of the root disk. An empty name means that the disk is ephemeral.
func (v *volumes) ensureClaim(ctx context.Context, s *scope) flow.Result {
	disk := rootDisk(s.vm)
	if disk.known == "" && disk.template == nil {
		s.claim = ""
		return flow.Continue()
	}
	name, result := v.findClaim(ctx, s, disk)
	if result.Ends() {
		return result
	}
	s.claim = name
	return v.ensureDisk(ctx, s, disk, name)
}

// ensureDataClaims creates the claims of the data disks.
func (v *volumes) ensureDataClaims(ctx context.Context, s *scope) flow.Result {
	for i := range s.vm.Spec.DataDisks {
		disk := dataDiskOf(s.vm, &s.vm.Spec.DataDisks[i])
		name, result := v.findClaim(ctx, s, disk)
		if !result.Ends() && name != disk.known && name != disk.first {
			result = v.recordDataClaim(ctx, s, disk.name, name)
		}
		if !result.Ends() && name == s.claim {
			result = s.blocked(causef(reasonClaimTaken, "%spersistent volume claim %s is the disk from which the virtual machine starts; choose another name", disk.field, name))
		}
		if !result.Ends() {
			result = v.ensureDisk(ctx, s, disk, name)
		}
		if result.Ends() {
			return result
		}
	}
	return flow.Continue()
}

// recordDataClaim stores the claim of a data disk that was found after the status was lost.
func (v *volumes) recordDataClaim(ctx context.Context, s *scope, disk, claim string) flow.Result {
	return flow.Fail(v.registry.Update(ctx, s.vm, func(status *v1alpha1.VirtualMachineStatus) {
		status.DataDisks = append(status.DataDisks, v1alpha1.DataDiskStatus{Name: disk, VolumeClaimName: claim})
	}))
}

// findClaim returns the name of a disk's claim: that in the status or, if the status was lost, that of the only claim of
// the disk.
func (v *volumes) findClaim(ctx context.Context, s *scope, disk ownDisk) (string, flow.Result) {
	if disk.known != "" {
		return disk.known, flow.Continue()
	}
	claims, err := v.claims(ctx, s, disk.name)
	switch {
	case err != nil:
		return "", flow.Fail(err)
	case len(claims) > 1:
		return "", s.blocked(unknownDisk(claims))
	case len(claims) == 1:
		return claims[0].Name, flow.Continue() // the status was lost
	}
	return disk.first, flow.Continue()
}

// ensureDisk creates the claim of a disk under a name, and waits for its volume.
func (v *volumes) ensureDisk(ctx context.Context, s *scope, disk ownDisk, name string) flow.Result {
	claim := &corev1.PersistentVolumeClaim{}
	err := v.live.Get(ctx, client.ObjectKey{Namespace: s.vm.Namespace, Name: name}, claim)
	switch {
	case apierrors.IsNotFound(err):
		return v.createClaim(ctx, s, disk, name)
	case err != nil:
		return flow.Fail(fmt.Errorf("reading claim %s: %w", name, err))
	case !podstate.Owns(s.vm, claim):
		return s.blocked(causef(reasonClaimTaken, "%spersistent volume claim %s exists and is not of this virtual machine", disk.field, name))
	case !claim.DeletionTimestamp.IsZero():
		return s.blocked(causef(v1alpha1.ReasonVolumeLost, "persistent volume claim %s, %s, is being deleted", name, disk.what))
	}
	if is, wanted := podspec.ModeOf(&claim.Spec), disk.mode(); is != wanted {
		return s.blocked(causef(reasonUnsupported, "%spersistent volume claim %s, %s, has volumeMode %s, and the spec %s; a disk cannot change it", disk.field, name, disk.what, is, wanted))
	}
	if err := v.growBeforeStart(ctx, s, claim, disk.name, disk.template); err != nil {
		return flow.Fail(err)
	}
	return v.awaitVolume(ctx, s, claim)
}

// createClaim creates the claim of a disk, unless the VM had one with data, or has another one that may be the disk. A
// guest must never get an empty disk instead.
func (v *volumes) createClaim(ctx context.Context, s *scope, disk ownDisk, name string) flow.Result {
	others, err := v.claims(ctx, s, disk.name)
	if err != nil {
		return flow.Fail(err)
	}
	others = slices.DeleteFunc(others, func(claim corev1.PersistentVolumeClaim) bool { return claim.Name == name })
	if len(others) > 0 && !podspec.ReplacesDisk(s.vm) {
		return s.blocked(causef(v1alpha1.ReasonVolumeLost,
			"persistent volume claim %s, %s, is gone, and there is %s; if that is the disk, write its name into %s", name, disk.what, named(others), disk.status))
	}
	if disk.used && !podspec.ReplacesDisk(s.vm) || disk.template == nil {
		return s.blocked(causef(v1alpha1.ReasonVolumeLost, "persistent volume claim %s, %s, is gone", name, disk.what))
	}
	claim := podspec.Claim(s.vm, disk.name, disk.template, name)
	err = v.client.Create(ctx, claim)
	if apierror.Taken(err) {
		return flow.Wait(expectations.StaleCache, "the claim was just created")
	}
	if err != nil {
		return flow.Fail(fmt.Errorf("creating claim %s: %w", name, err))
	}
	return v.awaitVolume(ctx, s, claim)
}

// awaitVolume waits until the claim is bound, unless it is bound with the Pod. An unschedulable Pod would look like a
// lack of hosts.
func (v *volumes) awaitVolume(ctx context.Context, s *scope, claim *corev1.PersistentVolumeClaim) flow.Result {
	usable, err := v.hasVolume(ctx, claim)
	if err != nil {
		return flow.Fail(err)
	}
	if usable {
		s.claims = append(s.claims, claim)
		return flow.Continue()
	}
	if claim.Spec.StorageClassName == nil {
		return s.blocked(causef(reasonVolumePending, "persistent volume claim %s has no volume yet, and no storage class: spec.volumeClaimTemplate names none, and the cluster has no default", claim.Name))
	}
	return s.blocked(causef(reasonVolumePending, "persistent volume claim %s has no volume yet", claim.Name))
}

// hasVolume reports whether a claim is bound, or will be bound with its Pod.
func (v *volumes) hasVolume(ctx context.Context, claim *corev1.PersistentVolumeClaim) (bool, error) {
	if claim.Status.Phase == corev1.ClaimBound {
		return true, nil
	}
	name := ptr.Deref(claim.Spec.StorageClassName, "")
	if name == "" {
		return false, nil
	}
	class := &storagev1.StorageClass{}
	if err := v.live.Get(ctx, client.ObjectKey{Name: name}, class); client.IgnoreNotFound(err) != nil {
		return false, fmt.Errorf("reading storage class %s: %w", name, err)
	}
	return ptr.Deref(class.VolumeBindingMode, "") == storagev1.VolumeBindingWaitForFirstConsumer, nil
}
