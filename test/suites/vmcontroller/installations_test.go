package vmcontroller

import (
	"fmt"
	"testing"

	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/manager"
	"github.com/millwright-dev/millwright/test/support/program"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// another starts a VM controller of another installation for the same VirtualMachines, and returns its identity.
func (i *installation) another() (name string) {
	i.t.Helper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "another-"}}
	i.must(i.client.Create(i.t.Context(), namespace))
	own := *i.Cluster
	own.Namespace = namespace.Name
	own.Grant(i.t, i.user, "config/rbac/vm-controller-role.yaml", "config/rbac/vm-leader-role.yaml")
	port, err := i.ControlPlane.PortFor(namespace.Name, 0)
	i.must(err)
	endpoint := fmt.Sprintf("127.0.0.1:%d", port)
	i.start("--namespace="+namespace.Name, "--service=", "--subresources-listen=", "--listen="+endpoint, "--endpoint="+endpoint)
	return namespace.Name + "/" + manager.VMLease
}

// leftTo waits for the event that a VM controller leaves a VM to another one.
func (i *installation) leftTo(vm *vmv1alpha1.VirtualMachine, by, to string) {
	i.t.Helper()
	i.eventually(func(g gomega.Gomega) {
		events := &corev1.EventList{}
		g.Expect(i.client.List(i.t.Context(), events, client.InNamespace(vm.Namespace))).To(gomega.Succeed())
		g.Expect(events.Items).To(gomega.ContainElement(gomega.SatisfyAll(
			gomega.HaveField("InvolvedObject.Name", vm.Name), gomega.HaveField("Reason", "OtherController"),
			gomega.HaveField("Message", gomega.And(gomega.HavePrefix("VM controller %s ignores", by), gomega.HaveSuffix("VM controller %s", to))),
		)))
	})
}

// TestVMController_TwoInstallations checks that the VM controller of another installation ignores a VM and its guest. When the
// VM is handed over to it, the guest continues to run with the first one, and the next hypervisor belongs to the
// other one.
func TestVMController_TwoInstallations(t *testing.T) {
	tier.All(t)
	t.Parallel()
	i := newInstallation(t)
	i.startHost()
	first := i.start()
	i.leads(first)
	vm := i.run("guest")
	own := i.Namespace + "/" + manager.VMLease
	if marked := vm.Annotations[vmv1alpha1.AnnotationController]; marked != own {
		t.Fatalf("the VM is that of %q, want %q", marked, own)
	}
	other := i.another()
	i.leftTo(vm, other, own)
	i.untouched(vm)
	i.must(i.client.Get(t.Context(), client.ObjectKeyFromObject(vm), vm))
	before := vm.DeepCopy()
	vm.Annotations[vmv1alpha1.AnnotationController] = other
	i.must(i.client.Patch(t.Context(), vm, client.MergeFrom(before)))
	i.leftTo(vm, own, other)
	i.untouched(vm)
	if terminated := i.count(vm, ended); terminated != 0 {
		t.Errorf("the hypervisor has lost its controller %d times", terminated)
	}
	first.Stop()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: vm.Namespace, Name: vm.Status.ActivePodName}}
	i.must(i.client.Delete(t.Context(), pod))
	next := &vmv1alpha1.VirtualMachine{}
	i.eventually(func(g gomega.Gomega) {
		g.Expect(i.client.Get(t.Context(), client.ObjectKeyFromObject(vm), next)).To(gomega.Succeed())
		g.Expect(next.Status.ActivePodUID).NotTo(gomega.BeElementOf("", vm.Status.ActivePodUID), "%+v", next.Status)
	})
	i.runs(next)
	if n := len(program.Processes(t, i.dir, "qemu-system")); n != 1 {
		t.Errorf("%d guests run", n)
	}
}
