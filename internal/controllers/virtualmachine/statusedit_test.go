package virtualmachine

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podspec"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// claims returns the names of all claims that are not being deleted.
func (w *testEnv) claims() []string {
	w.Helper()
	list, names := &corev1.PersistentVolumeClaimList{}, []string{}
	w.must(w.client.List(w.Context(), list, client.InNamespace(w.namespace)))
	for i := range list.Items {
		if list.Items[i].DeletionTimestamp.IsZero() {
			names = append(names, list.Items[i].Name)
		}
	}
	return names
}

// moved sets up a VM that has migrated, so that its disk is not on its first claim, and whose Pod a user has deleted.
// The controller is stopped.
func (w *testEnv) moved(name string) (disk string) {
	w.Helper()
	pod, _, _ := w.running(name)
	w.stop()
	vm := w.vm(name)
	first, next := &corev1.PersistentVolumeClaim{}, podspec.Claim(vm, "", vm.Spec.VolumeClaimTemplate, name+"-moved")
	w.must(w.client.Create(w.Context(), next))
	w.must(w.client.Get(w.Context(), client.ObjectKey{Namespace: w.namespace, Name: name}, first))
	first.Finalizers = nil
	w.must(w.client.Update(w.Context(), first))
	w.must(w.client.Delete(w.Context(), first))
	w.remove(pod)
	vm.Status.VolumeClaimName = next.Name
	vm.Status.Migration = &v1alpha1.VirtualMachineMigration{
		Phase: v1alpha1.MigrationSucceeded, SourcePodName: "earlier", TargetPodName: pod.Name, StartTime: metav1.Now(), EndTime: ptr.To(metav1.Now()),
	}
	w.must(w.client.Status().Update(w.Context(), vm))
	return next.Name
}

// TestStatus_ManualChangeKeepsDisk checks that a VM keeps its disk and gets no other one, whatever a user writes into its
// status.
func TestStatus_ManualChangeKeepsDisk(t *testing.T) {
	tier.All(t)
	t.Parallel()
	for name, test := range map[string]struct {
		change func(*v1alpha1.VirtualMachineStatus)
		// lost reports whether a user must specify the disk.
		lost bool
	}{
		"no status":             {func(s *v1alpha1.VirtualMachineStatus) { *s = v1alpha1.VirtualMachineStatus{} }, false},
		"no disk":               {func(s *v1alpha1.VirtualMachineStatus) { s.VolumeClaimName = "" }, false},
		"no disk, not prepared": {func(s *v1alpha1.VirtualMachineStatus) { s.VolumeClaimName, s.ImagePrepared = "", false }, false},
		"no Pod":                {func(s *v1alpha1.VirtualMachineStatus) { s.ActivePodName, s.ActivePodUID, s.ActiveRunID = "", "", "" }, false},
		"nonexistent Pod":       {func(s *v1alpha1.VirtualMachineStatus) { s.ActivePodName, s.ActivePodUID, s.ActiveRunID = "x", "x", "7" }, false},
		"nonexistent migration": {func(s *v1alpha1.VirtualMachineStatus) {
			s.Migration = &v1alpha1.VirtualMachineMigration{Phase: v1alpha1.MigrationCopying, StartTime: metav1.Now(), SourcePodName: s.ActivePodName, TargetPodName: "x", TargetPodUID: "x", TargetVolumeClaimName: "x"}
		}, false},
		"nonexistent disk":               {func(s *v1alpha1.VirtualMachineStatus) { s.VolumeClaimName = "nonexistent" }, true},
		"nonexistent disk, not prepared": {func(s *v1alpha1.VirtualMachineStatus) { s.VolumeClaimName, s.ImagePrepared = "nonexistent", false }, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newTestEnv(t)
			disk := w.moved("a")
			vm := w.vm("a")
			before := vm.Status.DeepCopy()
			test.change(&vm.Status)
			w.must(w.client.Status().Update(t.Context(), vm))
			w.start()
			if test.lost {
				w.awaitReady("a", v1alpha1.ReasonVolumeLost)
				if claims := w.claims(); !slices.Equal(claims, []string{disk}) || len(w.pods("a")) != 0 {
					t.Fatalf("claims %q and %d pods, want only the claim %s", claims, len(w.pods("a")), disk)
				}
				vm = w.vm("a")
				vm.Status.VolumeClaimName, vm.Status.ImagePrepared = before.VolumeClaimName, true
				w.must(w.client.Status().Update(t.Context(), vm))
			}
			next := w.awaitPod("a", before.ActivePodName)
			if claims := w.claims(); podspec.ClaimName(next) != disk || !slices.Equal(claims, []string{disk}) {
				t.Errorf("the pod mounts %s of %q, want %s", podspec.ClaimName(next), claims, disk)
			}
		})
	}
}
