package virtualmachine

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podspec"
	"github.com/millwright-dev/millwright/internal/reconcile/apierror"
	"github.com/millwright-dev/millwright/internal/reconcile/expectations"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
)

// restored reports whether a VM was restored from a backup, and has not found its claims since.
func restored(vm *v1alpha1.VirtualMachine) bool {
	uid := vm.Annotations[v1alpha1.AnnotationUID]
	return uid != "" && uid != string(vm.UID)
}

// adoptClaims makes a restored VM the controller of its claims, which were restored without one.
func (v *volumes) adoptClaims(ctx context.Context, s *scope) flow.Result {
	if !restored(s.vm) {
		return flow.Continue()
	}
	list := &corev1.PersistentVolumeClaimList{}
	if err := v.live.List(ctx, list, client.InNamespace(s.vm.Namespace), ofVM(s.vm)); err != nil {
		return flow.Fail(fmt.Errorf("listing claims: %w", err))
	}
	adopted := false
	for i := range list.Items {
		claim := &list.Items[i]
		if !podspec.IsRestoredClaim(s.vm, claim) {
			continue
		}
		if _, err := v.confirm(ctx, s); err != nil {
			return flow.Fail(err)
		}
		before := claim.DeepCopy()
		podspec.Adopt(s.vm, claim)
		if err := v.client.Patch(ctx, claim, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); apierror.IgnoreGone(err) != nil {
			return flow.Fail(fmt.Errorf("adopting claim %s: %w", claim.Name, err))
		}
		v.events.Eventf(s.vm, corev1.EventTypeNormal, "ClaimAdopted", "Adopted persistent volume claim %s, which was restored from a backup", claim.Name)
		adopted = true
	}
	if adopted {
		return flow.Wait(expectations.StaleCache, "the claims were just adopted")
	}
	return flow.Continue()
}

// vmOfRestoredClaim returns the VM that may adopt a claim.
func vmOfRestoredClaim(_ context.Context, claim client.Object) []reconcile.Request {
	name := claim.GetLabels()[v1alpha1.LabelVM]
	if name == "" || metav1.GetControllerOfNoCopy(claim) != nil {
		return nil
	}
	return []reconcile.Request{{NamespacedName: client.ObjectKey{Namespace: claim.GetNamespace(), Name: name}}}
}

// endRestore records that a restored VM has found all of its claims.
func (v *volumes) endRestore(ctx context.Context, s *scope) flow.Result {
	if !restored(s.vm) {
		return flow.Continue()
	}
	before := s.vm.DeepCopy()
	metav1.SetMetaDataAnnotation(&s.vm.ObjectMeta, v1alpha1.AnnotationUID, string(s.vm.UID))
	return flow.Fail(v.patch(ctx, s.vm, before))
}
