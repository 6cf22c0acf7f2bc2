package vms

import (
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// TestMachine_SurvivesHostCrash checks that a Machine whose class has leases and shared disks is not replaced when its
// host crashes: the same VM continues on the other host, and its Node becomes Ready again.
func TestMachine_SurvivesHostCrash(t *testing.T) {
	tier.All(t)
	c := up(t, "--hosts", "2")
	// The lease is long enough for the Node to become unready before the VM starts on the other host.
	pool := c.pool("pool", 1, c.kernelBoot()+`,"leaseMode":"FullLeases","leaseDurationSeconds":60,"accessModes":["ReadWriteMany"]`)
	machine := c.awaitSettled(pool)[0]
	phases, uids := c.phasesOf(pool, machine), c.uids()
	before := c.vm(c.vmNamed(machine))
	host := before.Status.NodeName
	c.crash(host, before.Name)

	c.eventually(joining, func(g gomega.Gomega) {
		g.Expect(c.vm(before.Name).Status.NodeName).NotTo(gomega.BeElementOf("", host))
		g.Expect(c.settled(g, pool)).To(gomega.ConsistOf(machine))
		g.Expect(phases()).To(gomega.HaveLen(3))
	})
	if diff := cmp.Diff([]v1alpha1.MachinePhase{v1alpha1.MachineRunning, v1alpha1.MachineUnknown, v1alpha1.MachineRunning}, phases()); diff != "" {
		t.Errorf("phases of the Machine (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(uids, c.uids()); diff != "" {
		t.Errorf("VMs and Nodes (-want +got):\n%s", diff)
	}
	after := c.vm(before.Name).Status
	if after.Lease.FencingToken <= before.Status.Lease.FencingToken || after.VolumeClaimName != before.Status.VolumeClaimName {
		t.Errorf("the VM was %+v, and is %+v", before.Status, after)
	}

	c.killOne(" hostrunner --name " + host) // the host starts again
	c.eventually(joining, func(g gomega.Gomega) {
		pods := &corev1.PodList{}
		g.Expect(c.client.List(t.Context(), pods, client.MatchingLabels{vmv1alpha1.LabelVM: before.Name})).To(gomega.Succeed())
		g.Expect(names(g, pods)).To(gomega.ConsistOf(after.ActivePodName))
	})
	c.awaitSettled(pool)
	c.delete(pool)
	c.awaitNothingLeft()
}

// crash stops a host without any report of it. Its only VM is vm.
func (c *cluster) crash(host, vm string) {
	c.t.Helper()
	c.signal(c.only(" hostrunner --name "+host).PID, syscall.SIGSTOP)
	uuid := "-uuid " + c.vm(vm).Spec.UUID
	c.signal(c.hypervisorOf(vm), syscall.SIGKILL)
	c.eventually(soon, func(g gomega.Gomega) { g.Expect(c.processes(uuid)).To(gomega.BeEmpty()) })
}
