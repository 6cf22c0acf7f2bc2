package virtualmachine

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

// TestVolume_StartWaitsForIt checks that a Pod is not created before its volume is bound, unless the storage class binds
// volumes with the Pod. A slow volume must not look like a lack of hosts.
func TestVolume_StartWaitsForIt(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	for what, class := range map[string]*string{"early": ptr.To(w.storageClass(storagev1.VolumeBindingImmediate)), "none": ptr.To("")} {
		w.declare(what, func(vm *v1alpha1.VirtualMachine) { vm.Spec.VolumeClaimTemplate.Spec.StorageClassName = class })
		w.eventually("the volume is awaited", func() bool { return w.ready(what) == reasonVolumePending })
		if pods := w.pods(what); len(pods) > 0 {
			t.Errorf("%s: there is pod %s but no volume", what, pods[0].Name)
		}
		claim := &corev1.PersistentVolumeClaim{}
		w.must(w.client.Get(t.Context(), client.ObjectKey{Namespace: w.namespace, Name: what}, claim))
		claim.Status.Phase = corev1.ClaimBound
		w.must(w.client.Status().Update(t.Context(), claim))
		w.eventually("the pod is created", func() bool { return len(w.pods(what)) == 1 })
	}
	w.eventually("both pods have an event", func() bool { return len(w.events.Events) >= 2 })
	w.wantEvents("Normal Created ", "Normal Created ") // and no warning
}

// TestClaim_TemplateCannotNameOtherDisks checks that a VM whose template names a disk of others gets no disk at all,
// and that a VM keeps the disk that it has.
func TestClaim_TemplateCannotNameOtherDisks(t *testing.T) {
	cloned := func(template *v1alpha1.VolumeClaimTemplate) {
		template.Spec.DataSource = &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: "other"}
	}
	for name, test := range map[string]struct {
		change func(*v1alpha1.VirtualMachine)
		field  string
	}{
		"root disk": {func(vm *v1alpha1.VirtualMachine) { cloned(vm.Spec.VolumeClaimTemplate) }, "spec.volumeClaimTemplate.spec.dataSource: "},
		"data disk": {func(vm *v1alpha1.VirtualMachine) {
			vm.Spec.VolumeClaimTemplate = nil
			vm.Spec.DataDisks = []v1alpha1.DataDisk{dataDisk("logs", "1Gi", "")}
			cloned(&vm.Spec.DataDisks[0].VolumeClaimTemplate)
		}, "spec.dataDisks[logs].volumeClaimTemplate.spec.dataSource: "},
		"annotation": {func(vm *v1alpha1.VirtualMachine) {
			vm.Spec.VolumeClaimTemplate.Metadata.Annotations = map[string]string{"trident.netapp.io/cloneFromPVC": "other"}
		}, "spec.volumeClaimTemplate.metadata.annotations: trident.netapp.io/cloneFromPVC "},
	} {
		t.Run(name, func(t *testing.T) {
			vm := fixture.VirtualMachine()
			test.change(vm)
			w := newFakeEnv(t, newAuthority(t), vm)
			w.pass(t.Context())
			w.pass(t.Context())
			claims := &corev1.PersistentVolumeClaimList{}
			w.wantRefused(t, reasonInvalid, test.field)
			if err := w.live.List(t.Context(), claims); err != nil || len(claims.Items) > 0 {
				t.Errorf("the VM has claims %v, %v", claims.Items, err)
			}
		})
	}
	t.Run("existing disk", func(t *testing.T) {
		vm, pod, objects := newRunning(t)
		cloned(vm.Spec.VolumeClaimTemplate)
		pod.Status.Phase = corev1.PodFailed
		objects[2].(*corev1.PersistentVolumeClaim).Status.Phase = corev1.ClaimBound
		w := newFakeEnv(t, newAuthority(t), objects...)
		w.pass(t.Context())
		w.pass(t.Context())
		if next := w.get(t).Status.ActivePodName; next == "" || next == pod.Name {
			t.Errorf("the next pod is %q", next)
		}
	})
}
