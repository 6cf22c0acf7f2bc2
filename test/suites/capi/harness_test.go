package capi

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/driver/sim"
	"github.com/millwright-dev/millwright/internal/local/controlplane"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/program"
)

// waitTimeout is how long an operation of several controllers may take. On an idle machine, none takes a tenth of
// it.
const waitTimeout = 10 * time.Minute

// harness is a Cluster with its infrastructure, and a simulated provider whose VMs outlive the manager.
type harness struct {
	*env.Cluster
	t       *testing.T
	dir     string
	cluster string
	cloud   *sim.Cloud
}

// newHarness creates a Cluster with a control plane and no machines.
func newHarness(t *testing.T) *harness {
	t.Helper()
	return newHarnessIn(t, env.New(t, env.WithControllerManager()).Cluster)
}

func newHarnessIn(t *testing.T, c *env.Cluster) *harness {
	t.Helper()
	h := newEmptyHarness(t, c)
	h.apply("provider.yaml", nil)
	h.apply(contract+"/cluster.yaml", nil)
	return h
}

// newEmptyHarness creates no objects.
func newEmptyHarness(t *testing.T, c *env.Cluster) *harness {
	t.Helper()
	requireCore(t, c)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log of the core about this test:\n%s", coreLog(c))
		}
	})
	h := &harness{Cluster: c, t: t, dir: t.TempDir(), cluster: "c-" + c.Namespace}
	cloud, err := sim.OpenCloud(h.path("sim"), sim.CloudOptions{})
	if err != nil {
		t.Fatal(err)
	}
	h.cloud = cloud
	t.Cleanup(func() {
		if err := cloud.Close(); err != nil {
			t.Error(err)
		}
	})
	return h
}

func (h *harness) path(name string) string { return filepath.Join(h.dir, name) }

// apply applies a file of testdata, in which it expands ${CLUSTER}, ${KUBECONFIG}, ${PORT} and the given
// variables.
func (h *harness) apply(file string, variables map[string]string) {
	h.t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", file))
	if err != nil {
		h.t.Fatal(err)
	}
	kubeconfig, err := os.ReadFile(h.ControlPlane.Kubeconfig())
	if err != nil {
		h.t.Fatal(err)
	}
	quoted, err := json.Marshal(string(kubeconfig))
	if err != nil {
		h.t.Fatal(err)
	}
	all := map[string]string{
		"CLUSTER": h.cluster, "KUBECONFIG": string(quoted), "PORT": fmt.Sprint(h.ControlPlane.Port()),
	}
	maps.Copy(all, variables)
	filled := os.Expand(string(text), func(name string) string {
		value, ok := all[name]
		if !ok {
			h.t.Errorf("%s: nothing is known of ${%s}", file, name)
		}
		return value
	})
	if err := controlplane.ApplyText(h.t.Context(), h.Client, []byte(filled), h.Namespace); err != nil {
		h.t.Fatalf("applying %s: %v", file, err)
	}
}

// pool creates a MachineDeployment, and the templates of its machines.
func (h *harness) pool(name string, replicas int, providerSpec string) {
	h.t.Helper()
	h.apply("pool.yaml", map[string]string{"POOL": name, "PROVIDERSPEC": providerSpec})
	h.apply(contract+"/workers.yaml", map[string]string{"POOL": name, "REPLICAS": fmt.Sprint(replicas)})
}

// own returns a name that is unique among all tests. A Node has the name of its machine, and Nodes are
// cluster-scoped.
func (h *harness) own(name string) string { return name + "-" + h.Namespace }

// machine creates one Machine with its MillwrightMachine, whose spec and the Machine's bootstrap are given in
// JSON.
func (h *harness) machine(name, spec, bootstrap string) {
	h.t.Helper()
	h.apply(contract+"/machine.yaml", map[string]string{"MACHINE": name, "SPEC": spec, "BOOTSTRAP": bootstrap})
}

// manager starts a manager of this test.
func (h *harness) manager(more ...string) *program.Process {
	h.t.Helper()
	return h.managerAt(h.Cluster, more...)
}

// managerAt starts a manager of this test for objects in the given cluster. It keeps its lease on a busy machine,
// because a manager that loses its lease exits.
func (h *harness) managerAt(c *env.Cluster, more ...string) *program.Process {
	h.t.Helper()
	path := h.path(fmt.Sprintf("manager-%d.kubeconfig", c.ControlPlane.Port()))
	if _, err := os.Stat(path); err != nil {
		env.WriteKubeconfig(h.t, path, c.UserWith(h.t, "config/rbac/capi-role.yaml"))
	}
	args := append([]string{
		"manager", "--apis", "capi", "--driver", "sim", "--sim-dir", h.path("sim"), "--namespace", h.Namespace,
		"--control-kubeconfig", path, "--target-kubeconfig", h.ControlPlane.Kubeconfig(), "--port", "0",
		"--leader-elect-lease-duration", "2m", "--leader-elect-renew-deadline", "90s",
	}, more...)
	p := program.Start(h.t, args...)
	h.t.Cleanup(func() {
		p.Kill()
		if h.t.Failed() {
			h.t.Logf("millwright %s printed:\n%s", strings.Join(args, " "), p.Output.Tail(100))
		}
	})
	return p
}

// kubeadmGroups are the API groups of Cluster API's providers for kubeadm.
var kubeadmGroups = map[string]string{"KubeadmControlPlane": "controlplane.cluster.x-k8s.io", "KubeadmConfig": "bootstrap.cluster.x-k8s.io"}

// kind returns the kind with this name: the core's, of its providers for kubeadm, ours, or a stub.
func kind(name string) schema.GroupVersionKind {
	if name == vmv1alpha1.VirtualMachineKind {
		return vmv1alpha1.SchemeGroupVersion.WithKind(name)
	}
	if strings.HasPrefix(name, "Millwright") {
		return schema.GroupVersionKind{Group: "infrastructure.millwright.dev", Version: "v1alpha1", Kind: name}
	}
	if strings.HasPrefix(name, "Stub") {
		return schema.GroupVersionKind{Group: "stub.millwright.dev", Version: "v1", Kind: name}
	}
	if group := kubeadmGroups[name]; group != "" {
		return schema.GroupVersionKind{Group: group, Version: contract, Kind: name}
	}
	return schema.GroupVersionKind{Group: "cluster.x-k8s.io", Version: contract, Kind: name}
}

// object returns an empty object of one of the core's kinds or ours, for reading or deleting it.
func (h *harness) object(kindName, name string) *unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(kind(kindName))
	object.SetNamespace(h.Namespace)
	object.SetName(name)
	return object
}

// get reads an object.
func (h *harness) get(g gomega.Gomega, kindName, name string) *unstructured.Unstructured {
	object := h.object(kindName, name)
	g.Expect(h.Client.Get(h.t.Context(), client.ObjectKeyFromObject(object), object)).To(gomega.Succeed())
	return object
}

// list lists the objects of a kind in this test.
func (h *harness) list(g gomega.Gomega, kindName string) []unstructured.Unstructured {
	list := &unstructured.UnstructuredList{}
	gvk := kind(kindName)
	gvk.Kind += "List"
	list.SetGroupVersionKind(gvk)
	g.Expect(h.Client.List(h.t.Context(), list, client.InNamespace(h.Namespace))).To(gomega.Succeed())
	return list.Items
}

// patch changes an object by a JSON merge patch.
func (h *harness) patch(kindName, name, patch string) {
	h.t.Helper()
	if err := h.Client.Patch(h.t.Context(), h.object(kindName, name), client.RawPatch("application/merge-patch+json", []byte(patch))); err != nil {
		h.t.Fatal(err)
	}
}

// remove deletes an object.
func (h *harness) remove(kindName, name string) {
	h.t.Helper()
	if err := h.Client.Delete(h.t.Context(), h.object(kindName, name), client.PropagationPolicy(metav1.DeletePropagationBackground)); err != nil {
		h.t.Fatal(err)
	}
}

// scale changes the number of machines.
func (h *harness) scale(pool string, replicas int) {
	h.t.Helper()
	h.patch("MachineDeployment", pool, fmt.Sprintf(`{"spec":{"replicas":%d}}`, replicas))
}

// vms returns the names of the machines that have a VM, one for each VM.
func (h *harness) vms(g gomega.Gomega) []string {
	vms, err := h.cloud.VMs()
	g.Expect(err).NotTo(gomega.HaveOccurred())
	names := make([]string, 0, len(vms))
	for _, vm := range vms {
		names = append(names, vm.Machine)
	}
	return names
}

// node returns the Node of a machine.
func (h *harness) node(g gomega.Gomega, name string) *corev1.Node {
	node := &corev1.Node{}
	g.Expect(h.Client.Get(context.Background(), client.ObjectKey{Name: name}, node)).To(gomega.Succeed())
	return node
}

// asking is the polling interval of a test. Most checks list half a dozen kinds.
const asking = 500 * time.Millisecond

// eventually waits until the check succeeds.
func (h *harness) eventually(check func(g gomega.Gomega)) {
	h.t.Helper()
	gomega.NewWithT(h.t).Eventually(check).WithTimeout(waitTimeout).WithPolling(asking).Should(gomega.Succeed())
}

// settled checks that there are exactly that many Machines, all of them Running, each with its own
// MillwrightMachine, VM and Node.
func (h *harness) settled(g gomega.Gomega, count int) []unstructured.Unstructured {
	machines := h.list(g, "Machine")
	g.Expect(names(machines)).To(gomega.HaveLen(count), "Machines")
	g.Expect(names(h.list(g, "MillwrightMachine"))).To(gomega.HaveLen(count), "MillwrightMachines")
	g.Expect(h.vms(g)).To(gomega.HaveLen(count), "VMs")
	for _, machine := range machines {
		g.Expect(machine.GetDeletionTimestamp()).To(gomega.BeNil(), machine.GetName())
		g.Expect(text(machine, "status", "phase")).To(gomega.Equal("Running"), machine.GetName())
		node := h.node(g, text(machine, "status", "nodeRef", "name"))
		g.Expect(node.Spec.ProviderID).To(gomega.Equal(text(machine, "spec", "providerID")))
	}
	return machines
}

// isReady checks the condition Ready.
func (h *harness) isReady(g gomega.Gomega, machine, status, reason string) *unstructured.Unstructured {
	ours := h.get(g, "MillwrightMachine", machine)
	g.Expect(condition(ours, "Ready")).To(gomega.And(
		gomega.HaveKeyWithValue("status", status), gomega.HaveKeyWithValue("reason", reason)), machine)
	return ours
}

// isGone checks that an object no longer exists.
func (h *harness) isGone(g gomega.Gomega, kindName, name string) {
	object := h.object(kindName, name)
	err := h.Client.Get(h.t.Context(), client.ObjectKeyFromObject(object), object)
	g.Expect(apierrors.IsNotFound(err)).To(gomega.BeTrue(), "%s %s is there, or not to be read: %v", kindName, name, err)
}

// names returns the names of objects, for checks whose failure would otherwise print whole objects.
func names(objects []unstructured.Unstructured) []string {
	names := make([]string, 0, len(objects))
	for _, object := range objects {
		names = append(names, object.GetName())
	}
	return names
}

// text returns a string in an object, or "".
func text(object unstructured.Unstructured, path ...string) string {
	value, _, _ := unstructured.NestedString(object.Object, path...)
	return value
}

// condition returns a condition in status.conditions.
func condition(object *unstructured.Unstructured, conditionType string) map[string]any {
	conditions, _, _ := unstructured.NestedSlice(object.Object, "status", "conditions")
	for _, entry := range conditions {
		if entry, ok := entry.(map[string]any); ok && entry["type"] == conditionType {
			return entry
		}
	}
	return nil
}
