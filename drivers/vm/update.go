package vm

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	"sigs.k8s.io/controller-runtime/pkg/client"

	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
)

// UpdateMachine implements driver.Updater. Changes of migrateStrategy and of tags, except those of the cluster and
// the role, take effect immediately. Changes of cpus, memory, hypervisorImage, terminationGracePeriodSeconds, ports,
// readinessProbe, leaseMode, leaseDurationSeconds, hostSelector, antiAffinity and resources take effect when the next
// hypervisor of the VM starts. All other fields need a new VM, as does leaseMode StorageLocking if the disks of the VM
// need leases.
func (d *Driver) UpdateMachine(ctx context.Context, req *driver.UpdateMachineRequest) (*driver.UpdateMachineResponse, error) {
	ctx, end := d.budget.begin(ctx)
	defer end()
	c, vm, err := d.find(ctx, request{req.Machine, req.MachineClass, req.Secret, parseSpec})
	if err != nil {
		return nil, err
	}
	if !vm.DeletionTimestamp.IsZero() {
		return nil, status.Error(codes.Aborted, fmt.Sprintf("VM %s is being deleted", c.key))
	}
	resp, next := c.compare(vm)
	if req.DryRun || len(resp.Updates) == 0 {
		return resp, nil
	}
	if err := c.cluster.Patch(ctx, next, client.MergeFromWithOptions(vm, client.MergeFromWithOptimisticLock{})); err != nil {
		return nil, coded(fmt.Sprintf("cannot update VM %s", c.key), err)
	}
	return resp, nil
}

// compare returns the differences between a VM and the requested one, and the VM with all possible changes.
func (c call) compare(vm *vmv1alpha1.VirtualMachine) (*driver.UpdateMachineResponse, *vmv1alpha1.VirtualMachine) {
	resp, want, next := &driver.UpdateMachineResponse{}, c.matching(vm), vm.DeepCopy()
	differs := func(name string, a, b any, apply func()) bool {
		if equality.Semantic.DeepEqual(a, b) {
			return false
		}
		apply()
		resp.Updates = append(resp.Updates, name)
		return true
	}
	atNextStart := func(name string, a, b any, apply func()) {
		if differs(name, a, b, apply) {
			resp.AtNextStart = append(resp.AtNextStart, name)
		}
	}
	if want.Labels[LabelCluster] == vm.Labels[LabelCluster] && want.Labels[LabelRole] == vm.Labels[LabelRole] {
		differs("tags", want.Annotations[AnnotationTags], vm.Annotations[AnnotationTags], func() { c.retag(next) })
	} else {
		resp.Replacements = append(resp.Replacements, "tags: the cluster or the role differs")
	}
	atNextStart("cpus", want.Spec.CPUs, vm.Spec.CPUs, func() { next.Spec.CPUs = want.Spec.CPUs })
	atNextStart("memory", want.Spec.Memory, vm.Spec.Memory, func() { next.Spec.Memory = want.Spec.Memory })
	atNextStart("hypervisorImage", want.Spec.HypervisorImage, vm.Spec.HypervisorImage, func() { next.Spec.HypervisorImage = want.Spec.HypervisorImage })
	atNextStart(graceField, want.Spec.TerminationGracePeriodSeconds, vm.Spec.TerminationGracePeriodSeconds,
		func() { next.Spec.TerminationGracePeriodSeconds = want.Spec.TerminationGracePeriodSeconds })
	atNextStart("ports", want.Spec.Ports, vm.Spec.Ports, func() { next.Spec.Ports = want.Spec.Ports })
	atNextStart("readinessProbe", want.Spec.ReadinessProbe, vm.Spec.ReadinessProbe, func() { next.Spec.ReadinessProbe = want.Spec.ReadinessProbe })
	atNextStart(leaseDurationField, want.Spec.LeaseDurationSeconds, vm.Spec.LeaseDurationSeconds, func() { next.Spec.LeaseDurationSeconds = want.Spec.LeaseDurationSeconds })
	atNextStart(hostSelectorField, want.Spec.HostSelector, vm.Spec.HostSelector, func() { next.Spec.HostSelector = want.Spec.HostSelector })
	atNextStart(antiAffinityField, want.Spec.AntiAffinity, vm.Spec.AntiAffinity, func() { next.Spec.AntiAffinity = want.Spec.AntiAffinity })
	atNextStart(resourcesField, want.Spec.Resources, vm.Spec.Resources, func() { next.Spec.Resources = want.Spec.Resources })
	if mode := leaseModeOf(want); mode != leaseModeOf(vm) && mode != vmv1alpha1.LeaseFullLeases && needsLeases(&vm.Spec) {
		resp.Replacements = append(resp.Replacements, leaseModeField+": the disks of the VM need "+string(vmv1alpha1.LeaseFullLeases))
	} else {
		atNextStart(leaseModeField, mode, leaseModeOf(vm), func() { next.Spec.LeaseMode = mode })
	}
	strategy := cmp.Or(want.Spec.MigrateStrategy, vmv1alpha1.MigrateLive)
	differs("migrateStrategy", strategy, cmp.Or(vm.Spec.MigrateStrategy, vmv1alpha1.MigrateLive), func() { next.Spec.MigrateStrategy = strategy })
	if c.key.Namespace != c.spec.VMPool {
		resp.Replacements = append(resp.Replacements, "vmPool")
	}
	resp.Replacements = append(resp.Replacements, c.fixed(vm)...)
	return resp, next
}

// retag replaces the tags of a VM and the labels that result from them.
func (c call) retag(vm *vmv1alpha1.VirtualMachine) {
	want, before := c.virtualMachine(), map[string]string{}
	_ = json.Unmarshal([]byte(vm.Annotations[AnnotationTags]), &before) // without the old tags, labels stay
	for key := range before {
		if want.Labels[key] == "" {
			delete(vm.Labels, key)
		}
	}
	for key := range c.spec.Tags {
		if value, ok := want.Labels[key]; ok {
			vm.Labels[key] = value
		}
	}
	vm.Annotations[AnnotationTags] = want.Annotations[AnnotationTags]
}
