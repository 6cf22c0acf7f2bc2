package virtualmachine

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/migration"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podspec"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podstate"
	"github.com/millwright-dev/millwright/internal/reconcile/apierror"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
)

// claims returns the claims of a VM that may belong to a disk, except for claims that are being deleted.
func (v *volumes) claims(ctx context.Context, s *scope, disk string) ([]corev1.PersistentVolumeClaim, error) {
	claims, err := v.ownClaims(ctx, s)
	return slices.DeleteFunc(claims, func(claim corev1.PersistentVolumeClaim) bool { return !podspec.IsClaimOf(s.vm, &claim, disk) }), err
}

// ownClaims returns all claims of a VM except for those that are being deleted.
func (v *volumes) ownClaims(ctx context.Context, s *scope) ([]corev1.PersistentVolumeClaim, error) {
	list := &corev1.PersistentVolumeClaimList{}
	err := v.client.List(ctx, list, client.InNamespace(s.vm.Namespace), client.MatchingFields{indexOwner: string(s.vm.UID)})
	if err != nil {
		return nil, fmt.Errorf("listing claims: %w", err)
	}
	return slices.DeleteFunc(list.Items, func(claim corev1.PersistentVolumeClaim) bool { return !claim.DeletionTimestamp.IsZero() }), nil
}

// claimNames returns the names of claims, sorted and joined with "and".
func claimNames(claims []corev1.PersistentVolumeClaim) string {
	var names []string
	for _, claim := range claims {
		names = append(names, claim.Name)
	}
	slices.Sort(names)
	return strings.Join(names, " and ")
}

// unknownDisk returns the cause for a VM whose status was lost during a migration. Only the status recorded which
// disk has the current data.
func unknownDisk(claims []corev1.PersistentVolumeClaim) *cause {
	return causef(reasonDiskUnknown, "the status was lost during a migration, so it is unknown which of the persistent volume claims %s has the current data; delete the outdated claim",
		claimNames(claims))
}

// unknownDisks returns a cause if, after the status was lost, a disk of the VM has several claims and it is unknown
// which of them has the data. It returns nil if each disk has at most one claim.
func (v *volumes) unknownDisks(ctx context.Context, s *scope, pods []*corev1.Pod) (*cause, error) {
	disks := []string{""}
	for _, pod := range pods {
		for _, disk := range podspec.DataClaims(pod) {
			disks = append(disks, disk.Name)
		}
	}
	for _, disk := range disks {
		claims, err := v.claims(ctx, s, disk)
		if err != nil {
			return nil, err
		}
		if len(claims) > 1 {
			return unknownDisk(claims), nil
		}
	}
	return nil, nil
}

// removeOtherClaims deletes the source disks of completed migrations and the target disks of failed ones. While the
// claim in the status does not exist, any other claim may be the disk, so none is deleted.
func (v *volumes) removeOtherClaims(ctx context.Context, s *scope) flow.Result {
	if s.vm.Status.Migration == nil {
		return flow.Continue()
	}
	claims, err := v.ownClaims(ctx, s)
	if err != nil {
		return flow.Fail(err)
	}
	unused := slices.DeleteFunc(slices.Clone(claims), func(claim corev1.PersistentVolumeClaim) bool {
		return !isUnused(s.vm, &claim, claims, slices.Concat(s.pods, s.servers))
	})
	if len(unused) == 0 {
		return flow.Continue()
	}
	live, err := v.confirm(ctx, s)
	if err != nil {
		return flow.Fail(err)
	}
	pods, err := v.ownPods(ctx, live)
	if err != nil {
		return flow.Fail(err)
	}
	for i := range unused {
		claim := &unused[i]
		if !isUnused(live, claim, claims, pods) {
			continue
		}
		if err := v.delete(ctx, claim); err != nil {
			return flow.Fail(err)
		}
	}
	return flow.Continue()
}

// isUnused reports whether a claim of a VM can be deleted. The parameter all holds all claims of the VM.
func isUnused(vm *v1alpha1.VirtualMachine, claim *corev1.PersistentVolumeClaim, all []corev1.PersistentVolumeClaim, pods []*corev1.Pod) bool {
	exists := func(name string) bool {
		return slices.ContainsFunc(all, func(claim corev1.PersistentVolumeClaim) bool { return claim.Name == name })
	}
	if podspec.IsDataClaim(vm, claim) {
		return migration.UnusedDataClaim(&vm.Status, claim.Labels[v1alpha1.LabelDataDisk], claim.Name, exists, pods, podspec.Claims)
	}
	return exists(vm.Status.VolumeClaimName) && migration.UnusedClaim(&vm.Status, claim.Name, pods, podspec.Claims)
}

// deleteClaims deletes the claims of a VM that is being deleted, and waits until they are gone.
func (v *volumes) deleteClaims(ctx context.Context, s *scope) flow.Result {
	list := &corev1.PersistentVolumeClaimList{}
	if err := v.live.List(ctx, list, client.InNamespace(s.vm.Namespace), ofVM(s.vm)); err != nil {
		return flow.Fail(fmt.Errorf("listing claims: %w", err))
	}
	waiting := false
	for i := range list.Items {
		claim := &list.Items[i]
		if !podstate.Owns(s.vm, claim) {
			continue
		}
		waiting = true
		if !claim.DeletionTimestamp.IsZero() {
			continue
		}
		if err := v.delete(ctx, claim); err != nil {
			return flow.Fail(err)
		}
	}
	if waiting {
		return flow.Wait(goneCheck, "the persistent volume claims are being deleted")
	}
	return flow.Continue()
}

// delete deletes a claim. It does not delete another claim that has replaced it under the same name.
func (v *volumes) delete(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	if err := v.client.Delete(ctx, claim, client.Preconditions{UID: &claim.UID}); apierror.IgnoreGone(err) != nil {
		return fmt.Errorf("deleting claim %s: %w", claim.Name, err)
	}
	return nil
}
