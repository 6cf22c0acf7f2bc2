package vms

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/onsi/gomega"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/program"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// TestVirtualMachine_MigratesOnHostDrain drains a host as kubectl does. Its VMs, which are nodes with a data disk each, are live-migrated to
// the other host one at a time, and one of them is migrated back with the command. Then its host stops the
// hypervisor without deleting the Pod, as when it shuts down. No guest reboots, and a cordoned host gets no VMs.
func TestVirtualMachine_MigratesOnHostDrain(t *testing.T) {
	tier.All(t)
	c := up(t, "--vm-host-shutdown-grace-period", "10m")
	c.cordon("host-2", true)
	pool := c.pool("pool", 2, c.kernelBoot()+`,"dataDisks":[{"name":"logs","size":1}]`)
	var vms []*vmv1alpha1.VirtualMachine
	var nodes []*corev1.Node
	for _, machine := range c.awaitSettled(pool) {
		vm := &vmv1alpha1.VirtualMachine{}
		c.get(vm, c.vmNamed(machine))
		vms, nodes = append(vms, vm), append(nodes, c.nodeOf(machine))
		if vm.Status.NodeName != "host-1" {
			t.Fatalf("%s is on %s", vm.Name, vm.Status.NodeName)
		}
	}

	c.cordon("host-2", false)
	c.cordon("host-1", true)
	for _, vm := range vms {
		c.evict(vm.Status.ActivePodName)
	}
	c.awaitOneByOne(vms)
	for _, vm := range vms {
		if host := c.awaitMoved(vm); host != "host-2" {
			t.Errorf("%s is on %s", vm.Name, host)
		}
	}
	for _, node := range nodes {
		c.awaitHeartbeat(node)
	}
	c.awaitSettled(pool) // with one QEMU each

	c.cordon("host-1", false)
	name := vms[0].Name
	text, status := program.Run(t, "vm", "migrate", name, "--dir", c.dir, "--timeout", "3m")
	if status != 0 || !strings.Contains(text, "migrated from host-2 to host-1 in") {
		t.Fatalf("vm migrate: status %d\n%s", status, text)
	}
	c.awaitMoved(vms[0])
	c.awaitHeartbeat(nodes[0])
	text, status = program.Run(t, "vm", "migrate", name, "--dir", c.dir, "--to", "host-1")
	if status == 0 || !strings.Contains(text, "already") {
		t.Errorf("to its own host: status %d\n%s", status, text)
	}
	c.signal(c.hypervisorOf(name), syscall.SIGTERM)
	if host := c.awaitMoved(vms[0]); host != "host-2" {
		t.Errorf("%s is on %s", name, host)
	}
	c.awaitHeartbeat(nodes[0])
}

// cordon cordons or uncordons a host.
func (c *cluster) cordon(host string, is bool) {
	c.t.Helper()
	patch := client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"spec":{"unschedulable":%t}}`, is))
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: host}}
	c.eventually(soon, func(g gomega.Gomega) { // it may not be registered yet
		g.Expect(c.client.Patch(c.t.Context(), node, patch)).To(gomega.Succeed())
	})
}

func (c *cluster) evict(name string) {
	c.t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
	if err := c.client.SubResource("eviction").Create(c.t.Context(), pod, &policyv1.Eviction{}); err != nil {
		c.t.Fatal(err)
	}
}

// awaitOneByOne waits until the VMs have new Pods, and checks that they do not migrate at the same time.
func (c *cluster) awaitOneByOne(vms []*vmv1alpha1.VirtualMachine) {
	c.t.Helper()
	c.eventually(joining, func(g gomega.Gomega) {
		all := &vmv1alpha1.VirtualMachineList{} // from a single point in time
		g.Expect(c.client.List(c.t.Context(), all)).To(gomega.Succeed())
		under, left := 0, 0
		for _, vm := range all.Items {
			if meta.IsStatusConditionTrue(vm.Status.Conditions, vmv1alpha1.ConditionMigrating) {
				under++
			}
			for _, had := range vms {
				if vm.Status.ActivePodName == had.Status.ActivePodName {
					left++
				}
			}
		}
		if under > 1 {
			c.t.Errorf("%d VMs leave the host at the same time", under)
		}
		g.Expect(left).To(gomega.BeZero())
	})
}

func (c *cluster) get(object client.Object, name string) {
	c.t.Helper()
	if err := c.client.Get(c.t.Context(), client.ObjectKey{Namespace: "default", Name: name}, object); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) nodeOf(machine string) *corev1.Node {
	c.t.Helper()
	node := &corev1.Node{}
	if err := c.client.Get(c.t.Context(), client.ObjectKey{Name: machine}, node); err != nil {
		c.t.Fatal(err)
	}
	return node
}

// awaitMoved waits until a VM has a new Pod, and only that Pod and its disks remain. It returns the host.
func (c *cluster) awaitMoved(vm *vmv1alpha1.VirtualMachine) string {
	c.t.Helper()
	had := vm.Status.ActivePodName
	c.eventually(3*time.Minute, func(g gomega.Gomega) {
		g.Expect(c.client.Get(c.t.Context(), client.ObjectKeyFromObject(vm), vm)).To(gomega.Succeed())
		g.Expect(vm.Status.ActivePodName).NotTo(gomega.Equal(had))
		g.Expect(vm.Status.Migration).To(gomega.HaveField("Phase", vmv1alpha1.MigrationSucceeded))
		g.Expect(vm.Status.Migration.EndTime).NotTo(gomega.BeNil())
		pods, claims := &corev1.PodList{}, &corev1.PersistentVolumeClaimList{}
		ofVM := client.MatchingLabels{vmv1alpha1.LabelVM: vm.Name}
		g.Expect(c.client.List(c.t.Context(), pods, client.InNamespace(vm.Namespace), ofVM)).To(gomega.Succeed())
		g.Expect(names(g, pods)).To(gomega.ConsistOf(vm.Status.ActivePodName))
		g.Expect(c.client.List(c.t.Context(), claims, client.InNamespace(vm.Namespace), ofVM)).To(gomega.Succeed())
		g.Expect(vm.Status.DataDisks).To(gomega.HaveLen(1))
		g.Expect(names(g, claims)).To(gomega.ConsistOf(vm.Status.VolumeClaimName, vm.Status.ActivePodName+"-logs"))
		g.Expect(vm.Status.DataDisks[0].VolumeClaimName).To(gomega.Equal(vm.Status.ActivePodName + "-logs"))
	})
	return vm.Status.NodeName
}

// awaitHeartbeat waits until a guest renews its node's lease, and checks that it has not rebooted.
func (c *cluster) awaitHeartbeat(before *corev1.Node) {
	c.t.Helper()
	now, lease := time.Now(), &coordinationv1.Lease{}
	c.eventually(joining, func(g gomega.Gomega) {
		key := client.ObjectKey{Namespace: corev1.NamespaceNodeLease, Name: before.Name}
		g.Expect(c.client.Get(c.t.Context(), key, lease)).To(gomega.Succeed())
		g.Expect(lease.Spec.RenewTime.Time).To(gomega.BeTemporally(">", now))
	})
	node := c.nodeOf(before.Name)
	if node.UID != before.UID || node.Status.NodeInfo.BootID != before.Status.NodeInfo.BootID || !ready(node) {
		c.t.Errorf("node %s: UID %s, boot %s, ready %t; was %s, %s", node.Name, node.UID, node.Status.NodeInfo.BootID, ready(node),
			before.UID, before.Status.NodeInfo.BootID)
	}
}
