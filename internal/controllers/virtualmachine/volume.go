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
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/conditions"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podspec"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podstate"
	"github.com/millwright-dev/millwright/internal/reconcile/expectations"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
)

// ownDisk is a disk of a VM, for the steps that give it a claim.
type ownDisk struct {
	// name of a data disk. Empty: the disk from which the VM starts.
	name string
	// field comes before sentences about the spec of the disk, what names the disk in others, and status is where its
	// claim is.
	field, what, status string
	// template of its claim. Nil: a lost claim cannot be created again.
	template *v1alpha1.VolumeClaimTemplate
	// known is its claim as the status has it; empty if it has none. first is the name that it gets then.
	known, first string
	// used reports whether the claim that the status has may have data.
	used bool
}

// mode returns whether the spec wants a file or a device.
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

// ensureClaim creates the claim of the disk. An empty name of the claim means that the
// disk is ephemeral.
func (c *Controller) ensureClaim(ctx context.Context, p *pass) flow.Result {
	disk := rootDisk(p.vm)
	if disk.known == "" && disk.template == nil {
		p.claim = ""
		return flow.Continue()
	}
	name, result := c.findClaim(ctx, p, disk)
	if result.Ends() {
		return result
	}
	p.claim = name
	return c.ensureDisk(ctx, p, disk, name)
}

// ensureDataClaims creates the claims of the data disks.
func (c *Controller) ensureDataClaims(ctx context.Context, p *pass) flow.Result {
	for i := range p.vm.Spec.DataDisks {
		disk := dataDiskOf(p.vm, &p.vm.Spec.DataDisks[i])
		name, result := c.findClaim(ctx, p, disk)
		if !result.Ends() && name != disk.known && name != disk.first {
			result = c.recordDataClaim(ctx, p, disk.name, name)
		}
		if !result.Ends() && name == p.claim {
			result = p.blocked(conditions.Causef(conditions.ReasonClaimTaken, "%spersistent volume claim %s is the disk from which the virtual machine starts; choose another name", disk.field, name))
		}
		if !result.Ends() {
			result = c.ensureDisk(ctx, p, disk, name)
		}
		if result.Ends() {
			return result
		}
	}
	return flow.Continue()
}

// recordDataClaim stores the claim of a data disk that was found after the status was lost.
func (c *Controller) recordDataClaim(ctx context.Context, p *pass, disk, claim string) flow.Result {
	return flow.Fail(c.registry.Update(ctx, p.vm, func(status *v1alpha1.VirtualMachineStatus) {
		status.DataDisks = append(status.DataDisks, v1alpha1.DataDiskStatus{Name: disk, VolumeClaimName: claim})
	}))
}

// findClaim returns the name of a disk's claim: that of the status, or if that was lost, that of the only claim there is.
func (c *Controller) findClaim(ctx context.Context, p *pass, disk ownDisk) (string, flow.Result) {
	if disk.known != "" {
		return disk.known, flow.Continue()
	}
	claims, err := c.claims(ctx, p, disk.name)
	switch {
	case err != nil:
		return "", flow.Fail(err)
	case len(claims) > 1:
		return "", p.blocked(unknownDisk(claims))
	case len(claims) == 1:
		return claims[0].Name, flow.Continue() // the status was lost
	}
	return disk.first, flow.Continue()
}

// ensureDisk creates the claim of a disk under a name, and waits for its volume.
func (c *Controller) ensureDisk(ctx context.Context, p *pass, disk ownDisk, name string) flow.Result {
	claim := &corev1.PersistentVolumeClaim{}
	err := c.APIReader.Get(ctx, client.ObjectKey{Namespace: p.vm.Namespace, Name: name}, claim)
	switch {
	case apierrors.IsNotFound(err):
		return c.createClaim(ctx, p, disk, name)
	case err != nil:
		return flow.Fail(fmt.Errorf("reading claim %s: %w", name, err))
	case !podstate.Owns(p.vm, claim):
		return p.blocked(conditions.Causef(conditions.ReasonClaimTaken, "%spersistent volume claim %s exists and is not of this virtual machine", disk.field, name))
	case !claim.DeletionTimestamp.IsZero():
		return p.blocked(conditions.Causef(v1alpha1.ReasonVolumeLost, "persistent volume claim %s, %s, is being deleted", name, disk.what))
	}
	if is, wanted := podspec.ModeOf(&claim.Spec), disk.mode(); is != wanted {
		return p.blocked(conditions.Causef(conditions.ReasonUnsupported, "%spersistent volume claim %s, %s, has volumeMode %s, and the spec %s; a disk cannot change it", disk.field, name, disk.what, is, wanted))
	}
	if err := c.growBeforeStart(ctx, p, claim, disk.name, disk.template); err != nil {
		return flow.Fail(err)
	}
	return c.awaitVolume(ctx, p, claim)
}

// claims returns the claims of a VM that may be those of a disk, and are not being deleted.
func (c *Controller) claims(ctx context.Context, p *pass, disk string) ([]corev1.PersistentVolumeClaim, error) {
	claims, err := c.ownClaims(ctx, p)
	return slices.DeleteFunc(claims, func(claim corev1.PersistentVolumeClaim) bool { return !podspec.IsClaimOf(p.vm, &claim, disk) }), err
}

// ownClaims returns all claims of a VM that are not being deleted.
func (c *Controller) ownClaims(ctx context.Context, p *pass) ([]corev1.PersistentVolumeClaim, error) {
	list := &corev1.PersistentVolumeClaimList{}
	err := c.Client.List(ctx, list, client.InNamespace(p.vm.Namespace), client.MatchingFields{indexOwner: string(p.vm.UID)})
	if err != nil {
		return nil, fmt.Errorf("listing claims: %w", err)
	}
	return slices.DeleteFunc(list.Items, func(claim corev1.PersistentVolumeClaim) bool { return !claim.DeletionTimestamp.IsZero() }), nil
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
func unknownDisk(claims []corev1.PersistentVolumeClaim) *conditions.Cause {
	return conditions.Causef(conditions.ReasonDiskUnknown, "the status was lost during a migration; of the persistent volume claims %s delete the one that is not the disk",
		named(claims))
}

// unknownDisks returns why nobody knows which claims have the data of a VM whose status was lost; nil if there is one claim
// of each disk.
func (c *Controller) unknownDisks(ctx context.Context, p *pass, pods []*corev1.Pod) (*conditions.Cause, error) {
	disks := []string{""}
	for _, pod := range pods {
		for _, disk := range podspec.DataClaims(pod) {
			disks = append(disks, disk.Name)
		}
	}
	for _, disk := range disks {
		claims, err := c.claims(ctx, p, disk)
		if err != nil {
			return nil, err
		}
		if len(claims) > 1 {
			return unknownDisk(claims), nil
		}
	}
	return nil, nil
}

// createClaim creates the claim of a disk, unless the VM had one with data, or has another one that may be the
// disk: a guest must never get an empty disk instead.
func (c *Controller) createClaim(ctx context.Context, p *pass, disk ownDisk, name string) flow.Result {
	others, err := c.claims(ctx, p, disk.name)
	if err != nil {
		return flow.Fail(err)
	}
	others = slices.DeleteFunc(others, func(claim corev1.PersistentVolumeClaim) bool { return claim.Name == name })
	if len(others) > 0 && !podspec.ReplacesDisk(p.vm) {
		return p.blocked(conditions.Causef(v1alpha1.ReasonVolumeLost,
			"persistent volume claim %s, %s, is gone, and there is %s; if that is the disk, write its name into %s", name, disk.what, named(others), disk.status))
	}
	if disk.used && !podspec.ReplacesDisk(p.vm) || disk.template == nil {
		return p.blocked(conditions.Causef(v1alpha1.ReasonVolumeLost, "persistent volume claim %s, %s, is gone", name, disk.what))
	}
	claim := podspec.Claim(p.vm, disk.name, disk.template, name)
	err = c.Client.Create(ctx, claim)
	if apierrors.IsAlreadyExists(err) {
		return flow.Wait(expectations.StaleCache, "the claim was just created")
	}
	if err != nil {
		return flow.Fail(fmt.Errorf("creating claim %s: %w", name, err))
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
		p.claims = append(p.claims, claim)
		return flow.Continue()
	}
	if claim.Spec.StorageClassName == nil {
		return p.blocked(conditions.Causef(conditions.ReasonVolumePending, "persistent volume claim %s has no volume yet, and no storage class: spec.volumeClaimTemplate names none, and the cluster has no default", claim.Name))
	}
	return p.blocked(conditions.Causef(conditions.ReasonVolumePending, "persistent volume claim %s has no volume yet", claim.Name))
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
