package virtualmachine

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podspec"
)

// backup is a VM and its claims as a backup tool restores them: without UIDs, owners and status.
type backup struct {
	w    *testEnv
	vm   *v1alpha1.VirtualMachine
	pod  *corev1.Pod
	root *corev1.PersistentVolumeClaim
	logs *corev1.PersistentVolumeClaim
}

func saved(object metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: object.Namespace, Name: object.Name, Labels: object.Labels, Annotations: object.Annotations, Finalizers: object.Finalizers}
}

// backUp backs up VM a with the disks a and a-logs, and then removes everything as if the cluster were lost. The VM
// controller runs again afterwards.
func backUp(w *testEnv) *backup {
	w.Helper()
	w.declare("a", w.withLogs)
	b := &backup{w: w, pod: w.awaitPod("a", ""), root: &corev1.PersistentVolumeClaim{}, logs: &corev1.PersistentVolumeClaim{}}
	w.stop()
	w.remove(b.pod)
	vm := w.vm("a")
	b.vm = &v1alpha1.VirtualMachine{ObjectMeta: saved(vm.ObjectMeta), Spec: vm.Spec}
	for name, claim := range map[string]*corev1.PersistentVolumeClaim{"a": b.root, "a-logs": b.logs} {
		w.must(w.client.Get(w.Context(), client.ObjectKey{Namespace: w.namespace, Name: name}, claim))
		*claim = corev1.PersistentVolumeClaim{ObjectMeta: saved(claim.ObjectMeta), Spec: claim.Spec}
		w.loseClaim(name)
	}
	vm.Finalizers = nil
	w.must(w.client.Update(w.Context(), vm))
	w.must(w.client.Delete(w.Context(), vm))
	w.start()
	return b
}

// TestRestore_VirtualMachineFindsItsClaims checks that a VM that was restored from a backup does not start before all of
// its disks exist, and then gets its own, in every order of restored objects.
func TestRestore_VirtualMachineFindsItsClaims(t *testing.T) {
	t.Parallel()
	for _, order := range [][]string{
		{"vm", "root", "logs"}, {"vm", "logs", "root"}, {"root", "vm", "logs"}, {"logs", "vm", "root"}, {"root", "logs", "vm"}, {"logs", "root", "vm"},
	} {
		t.Run(strings.Join(order, " "), func(t *testing.T) {
			t.Parallel()
			w := newTestEnv(t)
			b := backUp(w)
			objects := map[string]client.Object{"vm": b.vm, "root": b.root, "logs": b.logs}
			for i, name := range order {
				if slices.Contains(order[:i], "vm") {
					w.awaitReady("a", v1alpha1.ReasonAwaitingRestore)
				}
				w.must(w.client.Create(t.Context(), objects[name]))
			}
			next := w.awaitPod("a", "")
			if diff := cmp.Diff(podspec.Claims(b.pod), podspec.Claims(next)); diff != "" {
				t.Errorf("disks: want - got +\n%s", diff)
			}
			b.wantOwnClaims()
		})
	}
}

// wantOwnClaims checks that the restored VM has exactly the restored claims, and one Pod.
func (b *backup) wantOwnClaims() {
	b.w.Helper()
	claims := &corev1.PersistentVolumeClaimList{}
	b.w.must(b.w.client.List(b.w.Context(), claims, client.InNamespace(b.w.namespace)))
	vm := b.w.vm("a")
	for i := range claims.Items {
		claim := &claims.Items[i]
		if !metav1.IsControlledBy(claim, vm) || claim.UID != b.root.UID && claim.UID != b.logs.UID {
			b.w.Errorf("claim %s was created again or is not owned: %v", claim.Name, claim.OwnerReferences)
		}
	}
	if len(claims.Items) != 2 || len(b.w.pods("a")) != 1 || vm.Spec.UUID != b.vm.Spec.UUID || restored(vm) {
		b.w.Errorf("%d claims, %d pods, UUID %s, annotations %v", len(claims.Items), len(b.w.pods("a")), vm.Spec.UUID, vm.Annotations)
	}
}

// TestRestore_WithoutClaims checks that a restored VM gets new disks only at a user's request, and never the claim of
// another VM.
func TestRestore_WithoutClaims(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	b := backUp(w)
	b.logs.Annotations[v1alpha1.AnnotationUUID] = "00000000-0000-4000-8000-000000000001"
	w.must(w.client.Create(t.Context(), b.logs))
	w.must(w.client.Create(t.Context(), b.vm))
	w.awaitReady("a", v1alpha1.ReasonAwaitingRestore)
	w.change("a", func(vm *v1alpha1.VirtualMachine) { delete(vm.Annotations, v1alpha1.AnnotationUID) })
	w.awaitReady("a", reasonClaimTaken)
	if claim := (&corev1.PersistentVolumeClaim{}); w.gone(claim, "a-logs") || len(claim.OwnerReferences) > 0 {
		t.Errorf("the claim of another VM was adopted: %v", claim.OwnerReferences)
	}
	w.loseClaim("a-logs")
	w.awaitPod("a", "")
}
