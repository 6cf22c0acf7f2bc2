package vms

import (
	"context"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/program"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// TestVirtualMachine_BootsAndJoins is the scenario with all real parts: a MachineDeployment becomes a node that
// QEMU runs, and is deleted without leaving anything behind.
func TestVirtualMachine_BootsAndJoins(t *testing.T) {
	c := up(t)
	pool := c.pool("pool", 1, c.kernelBoot())
	c.awaitSettled(pool)
	c.delete(pool)
	c.awaitNothingLeft()
}

// TestMachineDeployment_BecomesNodes checks that a MachineDeployment becomes nodes with either form of boot, follows its
// replicas up and down, and leaves nothing behind.
func TestMachineDeployment_BecomesNodes(t *testing.T) {
	tier.All(t)
	c := up(t)
	kernel := c.pool("kernel", 1, c.kernelBoot())
	disk := c.pool("disk", 1, c.diskBoot())
	c.eventually(joining, func(g gomega.Gomega) {
		c.settled(g, kernel)
		c.settled(g, disk)
	})

	c.delete(disk)
	first := c.awaitSettled(kernel)
	c.privateSockets()
	c.attack(map[string][]string{"vms.test": {"/"}}) // the following must work despite the attacker's connections
	c.scale(kernel, 3)
	c.awaitSettled(kernel)
	c.scale(kernel, 1)
	if left := c.awaitSettled(kernel); len(left) != 1 {
		t.Errorf("scaled %v to 1, and has %v", first, left)
	}

	text, status := program.Run(t, "vm", "list", "--dir", c.dir)
	if status != 0 || strings.Count(text, "\n") != 2 || !strings.Contains(text, "Running") {
		t.Errorf("vm list: status %d\n%s", status, text)
	}
	text, status = program.Run(t, "status", "--dir", c.dir)
	if status != 0 || !strings.Contains(text, "1 Running") || !strings.Contains(text, "host-1") {
		t.Errorf("status: %d\n%s", status, text)
	}
	text, status = program.Run(t, "up", "--dir", c.dir, "--api-port", "0", "--image-port", "0")
	if status != 1 || !strings.Contains(text, "in use by process") {
		t.Errorf("a second up on the directory: status %d\n%s", status, text)
	}

	c.delete(kernel)
	c.awaitNothingLeft()
}

// delete deletes a MachineDeployment and waits until its Machines are gone.
func (c *cluster) delete(deployment *v1alpha1.MachineDeployment) {
	c.t.Helper()
	if err := c.client.Delete(c.t.Context(), deployment); err != nil {
		c.t.Fatal(err)
	}
	c.eventually(joining, func(g gomega.Gomega) {
		machines := &v1alpha1.MachineList{}
		g.Expect(c.client.List(c.t.Context(), machines, client.MatchingLabels{"name": deployment.Name})).To(gomega.Succeed())
		g.Expect(machines.Items).To(gomega.BeEmpty())
	})
}

// awaitNothingLeft waits until no object, file or process of any VM remains.
func (c *cluster) awaitNothingLeft() {
	c.t.Helper()
	c.eventually(soon, func(g gomega.Gomega) {
		for _, list := range []client.ObjectList{
			&vmv1alpha1.VirtualMachineList{}, &corev1.PodList{}, &corev1.PersistentVolumeClaimList{}, &corev1.PersistentVolumeList{},
		} {
			g.Expect(c.client.List(c.t.Context(), list)).To(gomega.Succeed())
			g.Expect(names(g, list)).To(gomega.BeEmpty())
		}
		nodes := &corev1.NodeList{}
		g.Expect(c.client.List(c.t.Context(), nodes)).To(gomega.Succeed())
		for _, node := range nodes.Items {
			g.Expect(node.Labels).To(gomega.HaveKey(vmv1alpha1.HostKey), "node "+node.Name)
		}
		for _, pattern := range []string{"volumes/*", "hosts/*/pods/*"} {
			files, err := filepath.Glob(filepath.Join(c.dir, pattern))
			g.Expect(err).NotTo(gomega.HaveOccurred())
			g.Expect(files).To(gomega.BeEmpty())
		}
		g.Expect(c.processes("qemu-system")).To(gomega.BeEmpty())
		g.Expect(c.processes(" hypervisor")).To(gomega.BeEmpty())
	})
}

// TestMachine_RecoversFromKilledProcesses checks that after a process is killed, the same Machines are Running again on the
// same nodes, each with one QEMU.
func TestMachine_RecoversFromKilledProcesses(t *testing.T) {
	tier.All(t)
	c := up(t)
	pool := c.pool("pool", 2, c.kernelBoot())
	before := c.awaitSettled(pool)
	uids := c.uids()
	for _, blow := range []struct {
		what string
		land func()
		// disturbs reports whether QEMU processes are killed too.
		disturbs bool
	}{
		{"QEMU", func() { c.killOne("qemu-system") }, true},
		{"hypervisor", func() { c.killOne(" hypervisor") }, true},
		{"host runner", func() { c.killOne(" hostrunner --name host-1") }, false},
		{"up", func() { c.kill(); c.start() }, false},
		{"everything", func() { c.kill(); c.killAll(""); c.start() }, true},
		{"power, in order", func() { c.stop(); c.start() }, true},
	} {
		running := c.pids()
		blow.land()
		c.eventually(joining, func(g gomega.Gomega) {
			after := c.settled(g, pool)
			g.Expect(after).To(gomega.ConsistOf(before), "machines after the crash of "+blow.what)
			now := c.pids()
			g.Expect(now).To(gomega.HaveLen(len(before)), "QEMUs after the crash of "+blow.what)
			if blow.disturbs {
				g.Expect(now).NotTo(gomega.Equal(running), "QEMUs after the crash of "+blow.what)
			} else {
				g.Expect(now).To(gomega.Equal(running), "QEMUs after the crash of "+blow.what)
			}
		})
		if diff := cmp.Diff(uids, c.uids()); diff != "" {
			t.Errorf("after the crash of %s, the VMs changed:\n%s", blow.what, diff)
		}
	}
	c.delete(pool)
	c.awaitNothingLeft()
}

// TestDown_TerminatesOrphanedProcesses checks that "down" leaves no process, however "up" terminated, and that the next "up"
// restores the machines.
func TestDown_TerminatesOrphanedProcesses(t *testing.T) {
	tier.All(t)
	c := up(t, "--hosts", "1")
	pool := c.pool("pool", 1, c.kernelBoot())
	before := c.awaitSettled(pool)
	for _, step := range []struct {
		before   func()
		wantText string
	}{
		{c.kill, "Stopped 1 virtual machine"},
		{func() {}, "Nothing runs"},
		{func() { c.start(); c.awaitSettled(pool) }, "Stopping process"},
	} {
		step.before()
		text, status := program.Run(t, "down", "--dir", c.dir)
		if status != 0 || !strings.Contains(text, step.wantText) {
			t.Errorf("down: status %d, want %q:\n%s", status, step.wantText, text)
		}
		if left := c.processes(""); len(left) > 0 {
			t.Errorf("down left %v", left)
		}
	}
	_ = c.process.Wait() // its exit has been observed
	c.start()
	if after := c.awaitSettled(pool); !cmp.Equal(before, after) {
		t.Errorf("machines %v became %v", before, after)
	}
}

// pids returns the process IDs of all QEMUs.
func (c *cluster) pids() []int {
	pids := []int{}
	for _, p := range c.processes("qemu-system") {
		pids = append(pids, p.PID)
	}
	return pids
}

func (c *cluster) killOne(texts string) {
	c.t.Helper()
	found := c.processes(texts)
	if len(found) == 0 {
		c.t.Fatalf("no process has %q in its command line", texts)
	}
	if err := syscall.Kill(found[0].PID, syscall.SIGKILL); err != nil {
		c.t.Fatal(err)
	}
}

// uids records the UIDs of VMs and of nodes that are not hosts, and returns a function that reports whether they
// are unchanged.
func (c *cluster) uids() map[string]string {
	c.t.Helper()
	found := map[string]string{}
	vms, nodes := &vmv1alpha1.VirtualMachineList{}, &corev1.NodeList{}
	for _, list := range []client.ObjectList{vms, nodes} {
		if err := c.client.List(context.Background(), list); err != nil {
			c.t.Fatal(err)
		}
	}
	for _, vm := range vms.Items {
		found["VM "+vm.Name] = string(vm.UID) + vm.Spec.UUID
	}
	for _, node := range nodes.Items {
		found["node "+node.Name] = string(node.UID)
	}
	return found
}

// TestVirtualMachine_ConsoleAndReset checks the commands for a VM's console and reset button.
func TestVirtualMachine_ConsoleAndReset(t *testing.T) {
	tier.All(t)
	c := up(t, "--hosts", "1")
	pool := c.pool("pool", 1, c.kernelBoot())
	c.awaitSettled(pool)
	vms := &vmv1alpha1.VirtualMachineList{}
	if err := c.client.List(t.Context(), vms); err != nil {
		t.Fatal(err)
	}
	name := vms.Items[0].Name

	first := c.console(name)
	first.awaitOutput("is Ready")
	first.write("ping\n")
	first.awaitOutput("pong")
	deaf, second := c.console(name), c.console(name)
	deaf.deafen() // stops reading from here on
	first.write("count on\n")
	first.awaitOutput("100")
	second.awaitOutput("pong", "100") // the earlier output, and the output that the other session caused

	before := c.pids()
	text, status := program.Run(t, "vm", "reset", name, "--dir", c.dir)
	if status != 0 || !strings.Contains(text, "was reset") {
		t.Fatalf("vm reset: status %d\n%s", status, text)
	}
	first.awaitOutput("is Ready", "is Ready") // before and after the reset
	if diff := cmp.Diff(before, c.pids()); diff != "" {
		t.Errorf("a reset is another QEMU:\n%s", diff)
	}
	c.awaitSettled(pool)

	for _, wrong := range [][]string{
		{"vm", "console", "nobody", "--dir", c.dir}, {"vm", "reset", "nobody", "--dir", c.dir},
		{"vm", "console", "--dir", c.dir}, {"vm", "list", "--dir", filepath.Join(c.dir, "nowhere")},
	} {
		if text, status := program.Run(t, wrong...); status == 0 || !strings.HasPrefix(text, "millwright: ") {
			t.Errorf("millwright %v: status %d\n%s", wrong, status, text)
		}
	}
}

// names returns the names of the objects in a list.
func names(g gomega.Gomega, list client.ObjectList) []string {
	var found []string
	g.Expect(meta.EachListItem(list, func(item runtime.Object) error {
		found = append(found, item.(client.Object).GetName())
		return nil
	})).To(gomega.Succeed())
	return found
}
