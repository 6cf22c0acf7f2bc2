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

// volumes maintains the claims for the disks of VMs.
type volumes struct{ *cluster }

// ownDisk describes a disk of a VM to the steps that create its claim.
type ownDisk struct {
	// name is the name of a data disk; empty for the root disk.
	name string
	// field is a prefix for messages about the disk's spec, and path is the path of its template. what names the disk
	// in other messages. status is the status field with its claim.
	field, path, what, status string
	// template is the template of the claim. If nil, a lost claim cannot be created again.
	template *v1alpha1.VolumeClaimTemplate
	// known is the claim in the status; empty if the status has none. In that case, first is the name of the new
	// claim.
	known, first string
	// used reports whether the claim in the status may have data.
	used bool
}

// mode returns the volume mode that the spec requests.
func (d ownDisk) mode() corev1.PersistentVolumeMode {
	if d.template == nil {
		return corev1.PersistentVolumeFilesystem
	}
	return podspec.ModeOf(&d.template.Spec)
}

func rootDisk(vm *v1alpha1.VirtualMachine) ownDisk {
	return ownDisk{
		path: "spec.volumeClaimTemplate", what: "the disk", status: "status.volumeClaimName", template: vm.Spec.VolumeClaimTemplate,
		known: vm.Status.VolumeClaimName, first: vm.Name,
		used: vm.Status.VolumeClaimName != "" && (vm.Status.ImagePrepared || vm.Spec.InitialImage == nil),
	}
}

func dataDiskOf(vm *v1alpha1.VirtualMachine, disk *v1alpha1.DataDisk) ownDisk {
	d := ownDisk{
		name: disk.Name, field: fmt.Sprintf("spec.dataDisks[%s]: ", disk.Name), path: fmt.Sprintf("spec.dataDisks[%s].volumeClaimTemplate", disk.Name),
		what: podspec.DiskName(disk.Name), status: "status.dataDisks",
		template: &disk.VolumeClaimTemplate, first: podspec.DataClaimName(vm, disk.Name),
	}
	if known := podspec.DataDiskStatus(&vm.Status, disk.Name); known != nil {
		d.known, d.used = known.VolumeClaimName, known.Prepared || disk.InitialImage == nil
	}
	return d
}

// ensureClaim ensures that the claim of the root disk exists. It sets s.claim to "" if the disk is ephemeral.
func (v *volumes) ensureClaim(ctx context.Context, s *scope) flow.Result {
	disk := rootDisk(s.vm)
	if disk.known == "" && disk.template == nil {
		s.claim = ""
		return flow.Continue()
	}
	name, result := v.findClaim(ctx, s, disk)
	if result.StopsPass() {
		return result
	}
	s.claim = name
	return v.ensureDisk(ctx, s, disk, name)
}

// ensureDataClaims ensures that the claims of the data disks exist.
func (v *volumes) ensureDataClaims(ctx context.Context, s *scope) flow.Result {
	for i := range s.vm.Spec.DataDisks {
		disk := dataDiskOf(s.vm, &s.vm.Spec.DataDisks[i])
		name, result := v.findClaim(ctx, s, disk)
		if !result.StopsPass() && name != disk.known && name != disk.first {
			result = v.recordDataClaim(ctx, s, disk.name, name)
		}
		if !result.StopsPass() && name == s.claim {
			result = s.blocked(causef(reasonClaimTaken, "%spersistent volume claim %s is already used for the root disk; choose another disk name", disk.field, name))
		}
		if !result.StopsPass() {
			result = v.ensureDisk(ctx, s, disk, name)
		}
		if result.StopsPass() {
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

// findClaim returns the name of a disk's claim. If the status was lost, it returns the only existing claim of the
// disk.
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
	case restored(s.vm):
		return "", s.blocked(causef(v1alpha1.ReasonAwaitingRestore,
			"the virtual machine was restored from a backup without a persistent volume claim for %s; restore the claim or, to start with a new disk, remove annotation %s", disk.what, v1alpha1.AnnotationUID))
	}
	return disk.first, flow.Continue()
}

// ensureDisk ensures that the claim of a disk exists under a name, and waits for its volume.
func (v *volumes) ensureDisk(ctx context.Context, s *scope, disk ownDisk, name string) flow.Result {
	claim := &corev1.PersistentVolumeClaim{}
	err := v.live.Get(ctx, client.ObjectKey{Namespace: s.vm.Namespace, Name: name}, claim)
	switch {
	case apierrors.IsNotFound(err):
		return v.createClaim(ctx, s, disk, name)
	case err != nil:
		return flow.Fail(fmt.Errorf("reading claim %s: %w", name, err))
	case !podstate.Owns(s.vm, claim):
		return s.blocked(causef(reasonClaimTaken, "%spersistent volume claim %s exists but does not belong to this virtual machine", disk.field, name))
	case !claim.DeletionTimestamp.IsZero():
		return s.blocked(causef(v1alpha1.ReasonVolumeLost, "persistent volume claim %s for %s is being deleted", name, disk.what))
	}
	if has, desired := podspec.ModeOf(&claim.Spec), disk.mode(); has != desired {
		return s.blocked(causef(reasonUnsupported, "%spersistent volume claim %s for %s has volumeMode %s, but the spec requests %s; the volumeMode of a disk cannot be changed", disk.field, name, disk.what, has, desired))
	}
	if err := v.growBeforeStart(ctx, s, claim, disk.name, disk.template); err != nil {
		return flow.Fail(err)
	}
	return v.awaitVolume(ctx, s, claim)
}

// createClaim creates the claim of a disk. It refuses to do so if the disk had a claim with data, or if another claim
// may be the disk, because a guest must never get an empty disk instead. For the same reason it refuses a template
// with fields that the claim does not get, such as a data source.
func (v *volumes) createClaim(ctx context.Context, s *scope, disk ownDisk, name string) flow.Result {
	others, err := v.claims(ctx, s, disk.name)
	if err != nil {
		return flow.Fail(err)
	}
	others = slices.DeleteFunc(others, func(claim corev1.PersistentVolumeClaim) bool { return claim.Name == name })
	if len(others) > 0 && !podspec.ReplacesDisk(s.vm) {
		return s.blocked(causef(v1alpha1.ReasonVolumeLost,
			"persistent volume claim %s for %s was not found, but %s exists; if that is the disk, set %s to its name", name, disk.what, claimNames(others), disk.status))
	}
	if disk.used && !podspec.ReplacesDisk(s.vm) || disk.template == nil {
		return s.blocked(causef(v1alpha1.ReasonVolumeLost, "persistent volume claim %s for %s was not found", name, disk.what))
	}
	wrong, err := podspec.InvalidTemplate(disk.template, disk.path)
	if err != nil {
		return flow.Fail(err)
	}
	if wrong != "" {
		return s.blocked(causef(reasonInvalid, "%s", wrong))
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

// awaitVolume waits until the claim is bound, unless it is bound only when its Pod is scheduled. Otherwise the Pod
// would be unschedulable, which would look like a lack of capacity.
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
		return s.blocked(causef(reasonVolumePending, "persistent volume claim %s has no volume and no storage class; set storageClassName in its volumeClaimTemplate, or define a default storage class", claim.Name))
	}
	return s.blocked(causef(reasonVolumePending, "persistent volume claim %s has no volume yet", claim.Name))
}

// hasVolume reports whether a claim is bound, or will be bound when its Pod is scheduled.
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
