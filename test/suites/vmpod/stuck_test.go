package vmpod

import (
	"github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
)

// noImage is an image that VMs may name, but that does not exist.
const noImage = "127.0.0.1:1/none:v1"

// stuck contains VMs that cannot start, and the reason of their condition Ready.
var stuck = map[string]struct {
	change func(*vmv1alpha1.VirtualMachine)
	reason string
}{
	"no-image": {func(vm *vmv1alpha1.VirtualMachine) { vm.Spec.HypervisorImage = noImage }, vmv1alpha1.ReasonImagePullFailed},
	"no-class": {func(vm *vmv1alpha1.VirtualMachine) { vm.Spec.VolumeClaimTemplate = claimTemplate(nil) }, "VolumePending"},
	"no-room":  {func(vm *vmv1alpha1.VirtualMachine) { vm.Spec.Memory = ptr.To(resource.MustParse("16Ti")) }, vmv1alpha1.ReasonUnschedulable},
	"no-host":  {func(vm *vmv1alpha1.VirtualMachine) { vm.Spec.HostSelector = map[string]string{"pool": "none"} }, vmv1alpha1.ReasonUnschedulable},
}

func (p *place) createStuck() map[string]*vmv1alpha1.VirtualMachine {
	p.Helper()
	created := map[string]*vmv1alpha1.VirtualMachine{}
	for name, one := range stuck {
		vm := p.vm(name)
		one.change(vm)
		p.must(p.client.Create(p.Context(), vm))
		created[name] = vm
	}
	return created
}

// reportsWhyStuck checks these conditions, and that the VM whose image cannot be pulled starts with another image.
func (p *place) reportsWhyStuck(created map[string]*vmv1alpha1.VirtualMachine) {
	p.Helper()
	for name, vm := range created {
		p.eventually(func(g gomega.Gomega) {
			ready := p.ready(vm)
			g.Expect(ready.Reason).To(gomega.Equal(stuck[name].reason), "%s: %+v", name, vm.Status)
			g.Expect(ready.Message).NotTo(gomega.BeEmpty())
		})
		p.Logf("%s: %s", name, p.ready(vm).Message)
	}
	vm := created["no-image"]
	p.eventually(func(g gomega.Gomega) { // it may just have changed
		p.ready(vm)
		vm.Spec.HypervisorImage = ""
		g.Expect(p.client.Update(p.Context(), vm)).To(gomega.Succeed())
	})
	p.eventually(func(g gomega.Gomega) { g.Expect(p.ready(vm).Reason).To(gomega.Equal("Running"), "%+v", vm.Status) })
}
