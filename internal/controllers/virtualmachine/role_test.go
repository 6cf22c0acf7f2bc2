package virtualmachine

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// TestRole_GrantsUsedPermissionsOnly checks that the lifecycle of a VM uses every permission of the shipped role. The role
// grants all permissions that are needed, because the controller runs with it.
func TestRole_GrantsUsedPermissionsOnly(t *testing.T) {
	t.Parallel()
	w := newPoolEnv(t)
	w.createPool("pool", "10.77.204.9")
	w.declare("in-pool", inPool("pool"))
	w.awaitClaim("in-pool", "pool")
	w.provide()
	w.awaitPod("in-pool", "")
	w.declare("in-global-pool", func(vm *v1alpha1.VirtualMachine) {
		inPool("pool")(vm)
		vm.Spec.AddressesFromPools[0].Kind = "GlobalInClusterIPPool"
	})
	w.awaitReady("in-global-pool", reasonAddress)
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "boot"}, Data: map[string][]byte{"x": []byte("1")}}
	w.must(w.client.Create(t.Context(), secret))
	w.declare("a", func(vm *v1alpha1.VirtualMachine) {
		vm.Spec.UserData = &v1alpha1.UserData{SecretRef: v1alpha1.SecretKeyReference{Name: "boot", Key: "x"}}
		vm.Spec.Ports, vm.Labels = []v1alpha1.Port{{Name: "http", Port: 80}}, map[string]string{labelApp: "web"}
	})
	pod := w.awaitPod("a", "")
	w.schedule(pod)
	h := w.hypervisor("a", pod, 1)
	w.wantStatus(h.lease(), vmpb.RunLeaseUpdate_STATUS_OK)
	w.requestRotation()
	w.must(w.rotation.Step(t.Context()))
	h.guestReady("")
	w.awaitReady("a", reasonRunning)
	w.eventually("the pod is selected", w.selected(pod, "web"))
	w.change("a", func(vm *v1alpha1.VirtualMachine) {
		vm.Spec.VolumeClaimTemplate.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse("2Gi")
	})
	w.eventually("a larger disk is pending", func() bool { return w.pending("a") != "" })
	vm := w.vm("a")
	w.must(w.client.Delete(t.Context(), vm))
	w.eventually("the hypervisor is deleted", func() bool { return w.gone(pod, pod.Name) || pod.DeletionTimestamp != nil })
	w.remove(pod)
	claim := &corev1.PersistentVolumeClaim{}
	w.eventually("the disk is deleted", func() bool { return w.gone(claim, "a") || claim.DeletionTimestamp != nil })
	if len(claim.Finalizers) > 0 { // there is no volume controller
		claim.Finalizers = nil
		w.must(w.client.Update(t.Context(), claim))
	}
	w.eventually("the virtual machine is gone", func() bool { return w.gone(vm, "a") })

	const ownerReferences = "required by an admission plug-in that is not enabled here"
	const events = "this controller records its events in memory"
	w.used.Check(t, map[string]string{
		"update virtualmachines/finalizers.vm.metropolis.monogon.dev":  ownerReferences,
		"create virtualmachines/hypervisors.vm.metropolis.monogon.dev": "required by policy/hosts.yaml",
		"create events": events,
		"patch events":  events,
	}, "config/rbac/vm-controller-role.yaml")
}
