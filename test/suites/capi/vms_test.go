package capi

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	vmdriver "github.com/millwright-dev/millwright/drivers/vm"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// vmPool is the MachineDeployment of the example with virtual machines.
const vmPool = "demo-vms"

// TestMillwrightMachine_BecomesVirtualMachine checks that the machines of Cluster API are virtual machines run by QEMU, from
// their creation until they are nodes and until their deletion, and that each has exactly one VM, whatever
// happens to our manager.
func TestMillwrightMachine_BecomesVirtualMachine(t *testing.T) {
	tier.All(t)
	t.Parallel()
	h := newVMHarness(t)
	made := h.birthsOfVMs()
	h.declare()
	first := h.manager()
	h.eventually(func(g gomega.Gomega) {
		g.Expect(condition(h.get(g, "Cluster", h.cluster), "InfrastructureReady")).To(gomega.HaveKeyWithValue("status", "True"))
	})

	// A creation is complete only when its VM has a host, so this crash happens in the middle of it.
	h.closeHosts(true)
	h.scale(vmPool, 2)
	made.await(t)
	first.Kill()
	h.closeHosts(false)
	for _, ours := range h.list(gomega.NewWithT(t), "MillwrightMachine") {
		if id := text(ours, "spec", "providerID"); id != "" {
			t.Errorf("%s has the VM %s without a host", ours.GetName(), id)
		}
	}
	h.endLease()
	h.manager()
	h.eventually(func(g gomega.Gomega) {
		h.approve(g)
		h.settled(g, 2)
	})

	h.scale(vmPool, 1)
	h.eventually(func(g gomega.Gomega) { h.settled(g, 1) })
	h.remove("Cluster", h.cluster)
	h.eventually(h.isEmpty)
	if all := made.all(); len(all) != 2 {
		t.Errorf("for two machines there have been the VMs %v", all)
	}
}

// closeHosts keeps VMs from being scheduled on a host, or permits that again.
func (h *vmHarness) closeHosts(closed bool) {
	h.t.Helper()
	hosts := &corev1.NodeList{}
	if err := h.Client.List(h.t.Context(), hosts, client.HasLabels{vmv1alpha1.HostKey}); err != nil {
		h.t.Fatal(err)
	}
	for i := range hosts.Items {
		patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"unschedulable":%t}}`, closed))
		if err := h.Client.Patch(h.t.Context(), &hosts.Items[i], patch); err != nil {
			h.t.Fatal(err)
		}
	}
}

// settled checks that there are exactly that many Machines, all of them Running, each with a node, a VM and the
// objects that belong to it.
func (h *vmHarness) settled(g gomega.Gomega, count int) {
	machines := h.list(g, "Machine")
	g.Expect(names(machines)).To(gomega.HaveLen(count), "Machines")
	g.Expect(names(h.list(g, "MillwrightMachine"))).To(gomega.HaveLen(count), "MillwrightMachines")
	h.hasVMs(g, count)
	nodes := h.guests(g)
	g.Expect(slices.Collect(maps.Keys(nodes))).To(gomega.HaveLen(count), "nodes")
	for _, machine := range machines {
		g.Expect(phase(machine)).To(gomega.Equal("Running"), machine.GetName())
		g.Expect(condition(&machine, "UpToDate")).To(gomega.HaveKeyWithValue("status", "True"), machine.GetName())
		node, found := nodes[text(machine, "status", "nodeRef", "name")]
		g.Expect(found).To(gomega.BeTrue(), "node of "+machine.GetName())
		id := text(machine, "spec", "providerID")
		g.Expect(id).To(gomega.HavePrefix("millwright:///" + h.Namespace + "/"))
		g.Expect(node.Spec.ProviderID).To(gomega.Equal(id))
		g.Expect(node.Status.Conditions).To(gomega.ContainElement(gomega.And(
			gomega.HaveField("Type", corev1.NodeReady), gomega.HaveField("Status", corev1.ConditionTrue))), node.Name)
		for _, address := range node.Status.Addresses {
			want := map[string]any{"type": string(address.Type), "address": address.Address}
			g.Expect(addresses(&machine)).To(gomega.ContainElement(want), machine.GetName())
		}
	}
}

// hasVMs checks that there are that many VMs, each with a Pod, a disk, user data and a QEMU.
func (h *vmHarness) hasVMs(g gomega.Gomega, count int) {
	g.Expect(names(h.list(g, "VirtualMachine"))).To(gomega.HaveLen(count), "VirtualMachines")
	for _, list := range []client.ObjectList{&corev1.PodList{}, &corev1.PersistentVolumeClaimList{}, &corev1.PersistentVolumeList{}} {
		g.Expect(h.Client.List(h.t.Context(), list)).To(gomega.Succeed())
		g.Expect(namesOf(g, list)).To(gomega.HaveLen(count))
	}
	secrets := &corev1.SecretList{}
	g.Expect(h.Client.List(h.t.Context(), secrets, client.HasLabels{vmdriver.LabelMachine})).To(gomega.Succeed())
	g.Expect(namesOf(g, secrets)).To(gomega.HaveLen(count), "Secrets with user data")
	disks, err := filepath.Glob(h.path(".millwright/volumes/*"))
	g.Expect(err).NotTo(gomega.HaveOccurred())
	g.Expect(disks).To(gomega.HaveLen(count), "disks")
	for _, texts := range []string{"qemu-system", " hypervisor"} {
		g.Expect(h.processes(texts)).To(gomega.HaveLen(count), "processes"+texts)
	}
}

// guests returns the nodes that are not hosts, by name.
func (h *vmHarness) guests(g gomega.Gomega) map[string]corev1.Node {
	noHost, err := labels.Parse("!" + vmv1alpha1.HostKey)
	g.Expect(err).NotTo(gomega.HaveOccurred())
	list := &corev1.NodeList{}
	g.Expect(h.Client.List(h.t.Context(), list, client.MatchingLabelsSelector{Selector: noHost})).To(gomega.Succeed())
	nodes := map[string]corev1.Node{}
	for _, node := range list.Items {
		nodes[node.Name] = node
	}
	return nodes
}

// isEmpty checks that nothing remains of the Cluster except nodes: the core keeps the nodes of a deleted Cluster,
// because its control plane would be deleted too.
func (h *vmHarness) isEmpty(g gomega.Gomega) {
	for _, kind := range []string{"Cluster", "MillwrightCluster", "MachineDeployment", "Machine", "MillwrightMachine"} {
		g.Expect(names(h.list(g, kind))).To(gomega.BeEmpty(), kind)
	}
	h.hasVMs(g, 0)
}

// births records the VMs that have existed.
type births struct {
	first chan struct{} // closed at the first one
	once  sync.Once
	mu    sync.Mutex
	names map[types.UID]string
}

// birthsOfVMs records each VM that is created from now on.
func (h *vmHarness) birthsOfVMs() *births {
	h.t.Helper()
	b := &births{first: make(chan struct{}), names: map[types.UID]string{}}
	changes := h.changes("VirtualMachine")
	go func() {
		for event := range changes {
			if vm, ok := event.Object.(*unstructured.Unstructured); ok && event.Type == watch.Added {
				b.add(vm)
			}
		}
	}()
	return b
}

func (b *births) add(vm *unstructured.Unstructured) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.names[vm.GetUID()] = vm.GetName()
	b.once.Do(func() { close(b.first) })
}

// await waits for the first VM.
func (b *births) await(t *testing.T) {
	t.Helper()
	select {
	case <-b.first:
	case <-time.After(waitTimeout):
		t.Fatalf("there is no VM after %v", waitTimeout)
	}
}

func (b *births) all() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []string
	for _, name := range b.names {
		all = append(all, name)
	}
	return all
}

// namesOf is like names, for a list of typed objects.
func namesOf(g gomega.Gomega, list client.ObjectList) []string {
	found := []string{}
	g.Expect(meta.EachListItem(list, func(item runtime.Object) error {
		found = append(found, item.(client.Object).GetName())
		return nil
	})).To(gomega.Succeed())
	return found
}
