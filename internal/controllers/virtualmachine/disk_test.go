package virtualmachine

import (
	"bytes"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podspec"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/rotation"
	"github.com/millwright-dev/millwright/internal/vm/identity"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

// TestVolume_Lost checks that a guest never gets an empty disk in place of a lost one.
func TestVolume_Lost(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	pod, _, _ := w.running("a")
	claim := &corev1.PersistentVolumeClaim{}
	w.must(w.client.Get(t.Context(), client.ObjectKey{Namespace: w.namespace, Name: "a"}, claim))
	claim.Finalizers = nil
	w.must(w.client.Update(t.Context(), claim))
	w.must(w.client.Delete(t.Context(), claim))
	w.remove(pod)
	w.awaitReady("a", v1alpha1.ReasonVolumeLost)
	if !w.gone(claim, "a") || len(w.pods("a")) != 0 {
		t.Error("there is a new disk or a pod")
	}
}

// TestClaim_OfOtherOwnerIsNotUsed checks that the claim of another owner is neither used nor deleted.
func TestClaim_OfOtherOwnerIsNotUsed(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	claim := podspec.Claim(fixture.Named("a", fixture.VirtualMachine()), "", fixture.VirtualMachine().Spec.VolumeClaimTemplate, "a")
	claim.Namespace, claim.OwnerReferences = w.namespace, nil
	w.must(w.client.Create(t.Context(), claim))
	w.declare("a", nil)
	w.awaitReady("a", reasonClaimTaken)
	w.must(w.client.Delete(t.Context(), w.vm("a")))
	w.eventually("the virtual machine is gone", func() bool { return w.gone(&v1alpha1.VirtualMachine{}, "a") })
	if w.gone(claim, "a") || claim.DeletionTimestamp != nil {
		t.Error("the foreign disk was deleted")
	}
}

// TestImage_Rejected checks that a retry is delayed, and that a changed spec is tried immediately.
func TestImage_Rejected(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	w.declare("a", nil)
	pod := w.awaitPod("a", "")
	w.schedule(pod)
	w.end(pod, left("ImageRejected", "The checksum is wrong."))
	w.awaitReady("a", "ImageRejected")
	vm := w.vm("a")
	if vm.Status.Phase != v1alpha1.PhaseCreating || vm.Status.ActivePodName != pod.Name {
		t.Errorf("phase %s, pod %s", vm.Status.Phase, vm.Status.ActivePodName)
	}
	const other = "http://images.example/other.raw"
	w.change("a", func(vm *v1alpha1.VirtualMachine) { vm.Spec.InitialImage.URL = other })
	next := w.awaitPod("a", pod.Name)
	if got := w.specOf(next).GetInitialImage().GetUrl(); got != other {
		t.Errorf("image %s", got)
	}
}

// TestAuthority_CreatedOnce checks that concurrent processes get the same certificate authority.
func TestAuthority_CreatedOnce(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	w.stop()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: podspec.AuthoritySecret}}
	w.must(w.client.Delete(t.Context(), secret))
	authorities := make([]*identity.Authority, 5)
	errs := make([]error, len(authorities))
	var group sync.WaitGroup
	for i := range authorities {
		group.Go(func() { authorities[i], errs[i] = rotation.Load(t.Context(), w.client, w.namespace) })
	}
	group.Wait()
	w.must(errs[0])
	first, _ := authorities[0].PEM()
	for i := range authorities {
		w.must(errs[i])
		if certificate, _ := authorities[i].PEM(); !bytes.Equal(certificate, first) {
			t.Error("there are two authorities")
		}
	}
}
