package virtualmachine

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
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
