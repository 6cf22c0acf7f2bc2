package vms

import (
	"syscall"
	"testing"

	"github.com/onsi/gomega"

	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// TestVirtualMachine_ServedDisks checks that a guest with served disks survives a killed disk server. If its hypervisor
// freezes, another one starts after the server has revoked the old tokens. The VM can be migrated like others.
func TestVirtualMachine_ServedDisks(t *testing.T) {
	tier.All(t)
	c := up(t)
	vm := leasedVM("served", shortLease)
	vm.Spec.DiskAccess = vmv1alpha1.DiskAccessServed
	c.create(vm)
	c.awaitRunning("served")
	first := c.vm("served")
	guest := c.only("-uuid " + first.Spec.UUID)

	c.signal(c.only(" disk-server").PID, syscall.SIGKILL)
	c.eventually(soon, func(g gomega.Gomega) {
		after := c.vm("served")
		g.Expect(after.Status.DiskServer.PodName).NotTo(gomega.Equal(first.Status.DiskServer.PodName))
		g.Expect(c.processes("qemu-storage-daemon")).To(gomega.HaveLen(1))
	})
	c.awaitRunning("served")
	if now := c.processes("-uuid " + first.Spec.UUID); len(now) != 1 || now[0].PID != guest.PID {
		t.Errorf("the guest was process %d, and is %v", guest.PID, now)
	}

	c.awaitNextGuest("served", func() (undo func()) {
		c.signal(c.hypervisorOf("served"), syscall.SIGSTOP)
		return func() {}
	})
	c.awaitRunning("served")
	after := c.vm("served").Status
	c.wantNext(first.Status, after)
	c.movesServed(vm.Name)
	c.freezes(vm.Name)
}

// movesServed migrates a VM. Its guest continues with the disks of the same server, and the old hypervisor can no
// longer change them.
func (c *cluster) movesServed(name string) {
	c.t.Helper()
	before := c.vm(name)
	c.wantLeaseMoves(before)
	after := c.vm(name).Status
	c.wantNext(before.Status, after)
	if after.DiskServer.PodName != before.Status.DiskServer.PodName || after.Migration.Phase != vmv1alpha1.MigrationSucceeded {
		c.t.Errorf("the VM was %+v, and is %+v", before.Status, after)
	}
	c.t.Logf("the guest stood still for %v", after.Migration.Downtime)
	if daemons := c.processes("qemu-storage-daemon"); len(daemons) != 1 {
		c.t.Errorf("the disks are open in %v", daemons)
	}
}

// wantNext checks that another hypervisor runs the VM, and that the old one cannot change its disks.
func (c *cluster) wantNext(before, after vmv1alpha1.VirtualMachineStatus) {
	c.t.Helper()
	if after.Lease.FencingToken <= before.Lease.FencingToken || after.DiskServer.RevokedToken != after.Lease.FencingToken-1 || after.VolumeClaimName != before.VolumeClaimName {
		c.t.Errorf("the VM was %+v, and is %+v", before, after)
	}
}

// freezes stops all processes of a VM's Pod, so that nothing in the Pod terminates the guest when its lease
// expires. Another hypervisor starts with the disks. If the host has not terminated the first one by then, it
// exits when it is resumed, and affects nothing.
func (c *cluster) freezes(name string) {
	c.t.Helper()
	before := c.vm(name)
	uuid := "-uuid " + before.Spec.UUID
	frozen := []int{c.hypervisorOf(name), c.only(uuid).PID}
	for _, p := range c.processes("watchdog") {
		if inPod(c.t, p.PID, before.Status.ActivePodName) {
			frozen = append(frozen, p.PID)
		}
	}
	for _, pid := range frozen {
		c.signal(pid, syscall.SIGSTOP)
	}
	c.eventually(joining, func(g gomega.Gomega) {
		found := c.processes(uuid)
		g.Expect(found).NotTo(gomega.BeEmpty())
		g.Expect(found[len(found)-1].PID).NotTo(gomega.Equal(frozen[1]))
	})
	c.awaitRunning(name)
	for _, pid := range frozen {
		_ = syscall.Kill(pid, syscall.SIGCONT)
	}
	c.eventually(soon, func(g gomega.Gomega) {
		found := c.processes(uuid)
		g.Expect(found).To(gomega.HaveLen(1))
		g.Expect(found[0].PID).NotTo(gomega.Equal(frozen[1]))
	})
	c.awaitRunning(name)
	c.wantNext(before.Status, c.vm(name).Status)
}
