package capi

import (
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"

	"github.com/millwright-dev/millwright/test/support/program"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// TestMillwrightMachine_SurvivesHostCrash checks that a Machine whose template has leases and shared disks is not
// replaced when its host crashes: the same VM continues on the other host, and its Node becomes Ready again.
func TestMillwrightMachine_SurvivesHostCrash(t *testing.T) {
	tier.All(t)
	t.Parallel()
	// The lease is long enough for the Node to become unready before the VM starts on the other host.
	h := newVMHarness(t, "size: xsmall", `size: xsmall
        leaseMode: FullLeases
        leaseDurationSeconds: 60
        accessModes: [ReadWriteMany]`)
	h.declare()
	h.manager()
	h.scale(vmPool, 1)
	h.eventually(func(g gomega.Gomega) {
		h.approve(g)
		h.settled(g, 1)
	})
	before := h.uids()
	host := h.hostOfVM(gomega.NewWithT(t))
	h.kill(" hostrunner --name "+host, syscall.SIGSTOP) // so that nothing reports the crash
	h.kill(" hypervisor", syscall.SIGKILL)

	h.eventually(func(g gomega.Gomega) {
		g.Expect(h.hostOfVM(g)).NotTo(gomega.BeElementOf("", host))
		nodes := h.guests(g)
		g.Expect(nodes).To(gomega.HaveLen(1))
		for _, node := range nodes {
			g.Expect(node.Status.Conditions).To(gomega.ContainElement(gomega.And(
				gomega.HaveField("Type", corev1.NodeReady), gomega.HaveField("Status", corev1.ConditionTrue))))
		}
	})
	h.kill(" hostrunner --name "+host, syscall.SIGKILL) // the host starts again
	h.eventually(func(g gomega.Gomega) { h.settled(g, 1) })
	if diff := cmp.Diff(before, h.uids()); diff != "" {
		t.Errorf("Machines, VMs and Nodes (-want +got):\n%s", diff)
	}
	h.remove("Cluster", h.cluster)
	h.eventually(h.isEmpty)
}

// hostOfVM returns the host of the only VM.
func (h *vmHarness) hostOfVM(g gomega.Gomega) string {
	vms := h.list(g, "VirtualMachine")
	g.Expect(vms).To(gomega.HaveLen(1))
	return text(vms[0], "status", "nodeName")
}

// uids returns the UIDs of Machines, VMs and nodes.
func (h *vmHarness) uids() map[string]string {
	h.t.Helper()
	g, uids := gomega.NewWithT(h.t), map[string]string{}
	for _, kind := range []string{"Machine", "MillwrightMachine", "VirtualMachine"} {
		for _, object := range h.list(g, kind) {
			uids[kind+" "+object.GetName()] = string(object.GetUID())
		}
	}
	for name, node := range h.guests(g) {
		uids["Node "+name] = string(node.UID)
	}
	return uids
}

// kill sends a signal to the only process whose command line contains a text.
func (h *vmHarness) kill(texts string, signal syscall.Signal) {
	h.t.Helper()
	found := h.processes(texts)
	if len(found) != 1 {
		h.t.Fatalf("processes%s: %v", texts, found)
	}
	if err := syscall.Kill(found[0].PID, signal); err != nil {
		h.t.Fatal(err)
	}
}

// processes returns the processes of this cluster whose command line contains a text. Watchdogs belong to the
// hypervisors that started them, and are not included.
func (h *vmHarness) processes(texts string) []program.Running {
	return slices.DeleteFunc(program.Processes(h.t, h.dir, texts), func(process program.Running) bool {
		return strings.HasSuffix(process.Args, "watchdog")
	})
}
