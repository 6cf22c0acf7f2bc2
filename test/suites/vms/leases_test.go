package vms

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/onsi/gomega"

	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/vm/lease"
	"github.com/millwright-dev/millwright/test/support/program"
	"github.com/millwright-dev/millwright/test/support/tier"
)

const (
	// shortLease is the lease of a guest whose hypervisor is partitioned. It is long enough not to expire while
	// "up" or a hypervisor is stalled for some seconds, as on a busy machine.
	shortLease = 20 * time.Second
	// steadyLease is long enough not to be suspected while "up" is stopped until a shortLease has expired.
	steadyLease = 2 * lease.DefaultDuration
)

// TestVirtualMachine_LeasePreventsSecondGuest checks that a guest terminates before another one starts when its hypervisor is partitioned from
// the controller, and when its hypervisor is frozen. A guest with a longer lease is not affected. It is migrated
// afterwards, with its lease.
func TestVirtualMachine_LeasePreventsSecondGuest(t *testing.T) {
	tier.All(t)
	c := up(t)
	steady, moving := leasedVM("steady", steadyLease), leasedVM("moving", shortLease)
	c.create(steady, moving)
	c.awaitRunning("steady")
	c.awaitRunning("moving")
	before := c.vm("steady")
	guest := c.only("-uuid " + before.Spec.UUID)

	c.awaitNextGuest("moving", func() (undo func()) {
		c.signal(c.process.PID(), syscall.SIGSTOP)
		return func() { c.signal(c.process.PID(), syscall.SIGCONT) }
	})
	if cut := c.vm("moving").Status.Lease; cut.FencingToken == 0 {
		t.Errorf("the lease is %+v", cut)
	}
	started := c.awaitNextGuest("moving", func() (undo func()) {
		c.signal(c.hypervisorOf("moving"), syscall.SIGSTOP)
		return func() {}
	})
	// The hypervisor has not released its lease, and renewed it at most a third of its duration before the cut.
	if least := lease.Wait(shortLease) - shortLease/3; started < least {
		t.Errorf("another guest started after %v, want %v at least", started, least)
	}

	if after := c.vm("steady"); after.Status.VirtualMachineAuthority != before.Status.VirtualMachineAuthority || *after.Status.Lease != *before.Status.Lease {
		t.Errorf("the VM with a longer lease was %+v, and is %+v", before.Status, after.Status)
	}
	if now := c.processes("-uuid " + before.Spec.UUID); len(now) != 1 || now[0].PID != guest.PID {
		t.Errorf("its guest was process %d, and is %v", guest.PID, now)
	}
	c.wantLeaseMoves(before)
}

// wantLeaseMoves migrates a VM, and checks that its lease moves with it.
func (c *cluster) wantLeaseMoves(vm *vmv1alpha1.VirtualMachine) {
	c.t.Helper()
	text, status := program.Run(c.t, "vm", "migrate", vm.Name, "--dir", c.dir, "--timeout", "3m")
	if status != 0 || !strings.Contains(text, "migrated from "+vm.Status.NodeName+" to ") {
		c.t.Fatalf("vm migrate: status %d\n%s", status, text)
	}
	moved := c.vm(vm.Name).Status
	if moved.ActivePodName == vm.Status.ActivePodName || moved.Lease.State != vmv1alpha1.LeaseOpen || moved.Lease.FencingToken <= vm.Status.Lease.FencingToken {
		c.t.Errorf("the VM was %+v, and is %+v", vm.Status, moved)
	}
	c.eventually(soon, func(g gomega.Gomega) { g.Expect(c.processes("-uuid " + vm.Spec.UUID)).To(gomega.HaveLen(1)) })
	c.awaitRunning(vm.Name)
}

func leasedVM(name string, duration time.Duration) *vmv1alpha1.VirtualMachine {
	vm := blankVM(name)
	vm.Spec.LeaseMode, vm.Spec.LeaseDurationSeconds = vmv1alpha1.LeaseFullLeases, int32(duration/time.Second)
	return vm
}

func (c *cluster) signal(pid int, signal syscall.Signal) {
	c.t.Helper()
	if err := syscall.Kill(pid, signal); err != nil {
		c.t.Fatal(err)
	}
}

// hypervisorOf returns the process that runs a VM.
func (c *cluster) hypervisorOf(vm string) int {
	c.t.Helper()
	pod := c.vm(vm).Status.ActivePodName
	for _, p := range c.processes(" hypervisor") {
		if !strings.HasSuffix(p.Args, "watchdog") && inPod(c.t, p.PID, pod) {
			return p.PID
		}
	}
	c.t.Fatalf("pod %s has no process", pod)
	return 0
}

// inPod reports whether a process belongs to a Pod, by its environment. A process that has exited belongs to
// none.
func inPod(t *testing.T, pid int, pod string) bool {
	t.Helper()
	environment, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ESRCH) {
		t.Fatal(err)
	}
	return strings.Contains(string(environment), `"podName":"`+pod+`"`)
}

// awaitNextGuest partitions a hypervisor. Its guest must terminate by itself within its lease. Then the partition
// is healed, and another hypervisor starts the guest. It returns the time between the partition and that start.
func (c *cluster) awaitNextGuest(name string, cut func() (undo func())) time.Duration {
	c.t.Helper()
	uuid := "-uuid " + c.vm(name).Spec.UUID
	first := c.only(uuid).PID
	at := time.Now()
	undo := cut()
	defer undo()
	c.eventually(soon, func(g gomega.Gomega) { g.Expect(c.processes(uuid)).To(gomega.BeEmpty()) })
	ended := time.Since(at)
	undo()
	c.eventually(joining, func(g gomega.Gomega) {
		found := c.processes(uuid)
		g.Expect(found).To(gomega.HaveLen(1))
		g.Expect(found[0].PID).NotTo(gomega.Equal(first))
	})
	started := time.Since(at)
	c.awaitRunning(name)
	c.t.Logf("the guest ended %v after the cut, another one started after %v", ended, started)
	return started
}
