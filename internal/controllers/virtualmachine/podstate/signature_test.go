package podstate

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

// TestSigner_CreatedPods checks which Pods with an owner reference to a VM count as created by a VM controller, and in which
// of them a process may act as a hypervisor.
func TestSigner_CreatedPods(t *testing.T) {
	t.Parallel()
	own := Signer{MAC: func(text string) string { return "own " + text }}
	other := Signer{MAC: func(text string) string { return "other " + text }}
	status := func(name string, uid types.UID) func(*v1alpha1.VirtualMachine) {
		return func(vm *v1alpha1.VirtualMachine) { vm.Status.ActivePodName, vm.Status.ActivePodUID = name, uid }
	}
	for name, test := range map[string]struct {
		vm     func(*v1alpha1.VirtualMachine)
		signer *Signer // of the Pod; nil if it is not signed
		pod    func(*corev1.Pod)
		// created and identifies are the results of the methods.
		created, identifies bool
	}{
		"recorded":                                   {vm: status("vm-1", "uid"), created: true, identifies: true},
		"recorded, of another controller":            {vm: status("vm-1", "uid"), signer: &other, created: true, identifies: true},
		"reserved":                                   {vm: status("vm-1", ""), signer: &own, created: true, identifies: true},
		"reserved, not signed":                       {vm: status("vm-1", "")},
		"reserved, signed by another controller":     {vm: status("vm-1", ""), signer: &other},
		"reserved, signature of another Pod":         {vm: status("vm-1", ""), signer: &own, pod: func(pod *corev1.Pod) { pod.Annotations[annotationSignature] += "2" }},
		"status lost":                                {signer: &own, created: true, identifies: true},
		"no status yet, not signed":                  {},
		"copy of a deleted Pod with another UID":     {vm: status("vm-1", "deleted"), signer: &own, created: true},
		"earlier Pod":                                {vm: status("vm-2", "uid-2"), signer: &own, created: true},
		"not signed, next to the authoritative one":  {vm: status("vm-2", "uid-2")},
		"signed, but of another VM":                  {vm: func(vm *v1alpha1.VirtualMachine) { vm.UID = "another" }, signer: &own},
		"recorded as the target":                     {vm: target("vm-1", "uid"), created: true, identifies: true},
		"target with another UID":                    {vm: target("vm-1", "deleted"), signer: &own, created: true},
		"target that is reserved":                    {vm: target("vm-1", ""), signer: &own, created: true, identifies: true},
		"target that is reserved, not signed":        {vm: target("vm-1", "")},
		"recorded as the disk server":                {vm: server("vm-1", "uid"), created: true, identifies: true},
		"disk server that is reserved, not signed":   {vm: server("vm-1", "")},
		"disk server that is reserved":               {vm: server("vm-1", ""), signer: &own, created: true, identifies: true},
		"recorded UID, but without an owner":         {vm: status("vm-1", "uid"), pod: func(pod *corev1.Pod) { pod.OwnerReferences = nil }},
		"signed, with the owner reference of a copy": {vm: status("vm-1", ""), signer: &own, pod: func(pod *corev1.Pod) { pod.OwnerReferences[0].UID = "earlier" }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			vm := fixture.VirtualMachine()
			pod := fixture.OwnedBy(vm, fixture.Named("vm-1", fixture.Pod()))
			pod.UID = "uid"
			if test.signer != nil {
				test.signer.Sign(pod)
			}
			if test.pod != nil {
				test.pod(pod)
			}
			if test.vm != nil {
				test.vm(vm)
			}
			if got := own.Created(vm, pod); got != test.created {
				t.Errorf("Created returns %t", got)
			}
			if got := own.MayIdentify(vm, pod); got != test.identifies {
				t.Errorf("MayIdentify returns %t", got)
			}
		})
	}
}

func target(name string, uid types.UID) func(*v1alpha1.VirtualMachine) {
	return func(vm *v1alpha1.VirtualMachine) {
		vm.Status.ActivePodName, vm.Status.ActivePodUID = "vm-0", "uid-0"
		vm.Status.Migration = &v1alpha1.VirtualMachineMigration{TargetPodName: name, TargetPodUID: uid}
	}
}

func server(name string, uid types.UID) func(*v1alpha1.VirtualMachine) {
	return func(vm *v1alpha1.VirtualMachine) {
		vm.Status.ActivePodName, vm.Status.ActivePodUID = "vm-0", "uid-0"
		vm.Status.DiskServer = &v1alpha1.DiskServerStatus{PodName: name, PodUID: uid}
	}
}

// TestSigner_WithoutKey checks that the owner reference and the status decide if there is no authority.
func TestSigner_WithoutKey(t *testing.T) {
	t.Parallel()
	vm := fixture.VirtualMachine()
	pod := fixture.OwnedBy(vm, fixture.Named("vm-1", fixture.Pod()))
	Signer{}.Sign(pod)
	if !(Signer{}).Created(vm, pod) || !(Signer{}).MayIdentify(vm, pod) {
		t.Error("a Pod of the VM does not count")
	}
}
