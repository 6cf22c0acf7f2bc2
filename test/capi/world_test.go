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
	"github.com/millwright-dev/millwright/test/env"
	"github.com/millwright-dev/millwright/test/program"
)

// patience is how long something may take that needs several controllers. Nothing here
// takes a tenth of it on an idle machine.
const patience = 3 * time.Minute

// world is a Cluster with its infrastructure, and a simulated provider whose VMs outlive
// the manager.
type world struct {
	*env.Cluster
	t       *testing.T
	dir     string
	cluster string
	cloud   *sim.Cloud
}

// newWorld declares a Cluster that has a control plane, and no machine yet.
func newWorld(t *testing.T) *world {
	t.Helper()
	return newWorldIn(t, env.New(t, env.WithControllerManager()).Cluster)
}

func newWorldIn(t *testing.T, c *env.Cluster) *world {
	t.Helper()
	w := emptyWorld(t, c)
	w.apply("provider.yaml", nil)
	w.apply(contract+"/cluster.yaml", nil)
	return w
}

// emptyWorld declares nothing yet.
func emptyWorld(t *testing.T, c *env.Cluster) *world {
	t.Helper()
	requireCore(t, c)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the core said of this test:\n%s", coreLog(c))
		}
	})
	w := &world{Cluster: c, t: t, dir: t.TempDir(), cluster: "c-" + c.Namespace}
	cloud, err := sim.OpenCloud(w.path("sim"), sim.CloudOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w.cloud = cloud
	t.Cleanup(func() {
		if err := cloud.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

func (w *world) path(name string) string { return filepath.Join(w.dir, name) }

// apply applies a file of testdata, with ${CLUSTER}, ${KUBECONFIG}, ${PORT} and the given
// variables in it.
func (w *world) apply(file string, variables map[string]string) {
	w.t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", file))
	if err != nil {
		w.t.Fatal(err)
	}
	kubeconfig, err := os.ReadFile(w.ControlPlane.Kubeconfig())
	if err != nil {
		w.t.Fatal(err)
	}
	quoted, err := json.Marshal(string(kubeconfig))
	if err != nil {
		w.t.Fatal(err)
	}
	all := map[string]string{
		"CLUSTER": w.cluster, "KUBECONFIG": string(quoted), "PORT": fmt.Sprint(w.ControlPlane.Port()),
	}
	maps.Copy(all, variables)
	filled := os.Expand(string(text), func(name string) string {
		value, ok := all[name]
		if !ok {
			w.t.Errorf("%s: nothing is known of ${%s}", file, name)
		}
		return value
	})
	if err := controlplane.ApplyText(w.t.Context(), w.Client, []byte(filled), w.Namespace); err != nil {
		w.t.Fatalf("applying %s: %v", file, err)
	}
}

// pool declares a MachineDeployment, and what its machines are made from.
func (w *world) pool(name string, replicas int, providerSpec string) {
	w.t.Helper()
	w.apply("pool.yaml", map[string]string{"POOL": name, "PROVIDERSPEC": providerSpec})
	w.apply(contract+"/workers.yaml", map[string]string{"POOL": name, "REPLICAS": fmt.Sprint(replicas)})
}

// own makes a name that no other test has: that of a machine becomes that of its Node, and
// Nodes are in no namespace.
func (w *world) own(name string) string { return name + "-" + w.Namespace }

// machine declares one Machine with its MillwrightMachine, whose spec and the Machine's
// bootstrap are given in JSON.
func (w *world) machine(name, spec, bootstrap string) {
	w.t.Helper()
	w.apply(contract+"/machine.yaml", map[string]string{"MACHINE": name, "SPEC": spec, "BOOTSTRAP": bootstrap})
}

// manager starts a manager of this world.
func (w *world) manager(more ...string) *program.Process {
	w.t.Helper()
	return w.managerAt(w.Cluster, more...)
}

// managerAt starts a manager of this world for objects that lie in the given cluster. It
// keeps its lease even where everything is slow: a manager that loses it ends.
func (w *world) managerAt(c *env.Cluster, more ...string) *program.Process {
	w.t.Helper()
	path := w.path(fmt.Sprintf("manager-%d.kubeconfig", c.ControlPlane.Port()))
	if _, err := os.Stat(path); err != nil {
		env.WriteKubeconfig(w.t, path, c.UserWith(w.t, "config/rbac/capi-role.yaml"))
	}
	args := append([]string{
		"manager", "--apis", "capi", "--driver", "sim", "--sim-dir", w.path("sim"), "--namespace", w.Namespace,
		"--control-kubeconfig", path, "--target-kubeconfig", w.ControlPlane.Kubeconfig(), "--port", "0",
		"--leader-elect-lease-duration", "2m", "--leader-elect-renew-deadline", "90s", "--leader-elect-retry-period", "200ms",
	}, more...)
	p := program.Start(w.t, args...)
	w.t.Cleanup(func() {
		p.Kill()
		if w.t.Failed() {
			w.t.Logf("millwright %s printed:\n%s", strings.Join(args, " "), p.Output.Tail(100))
		}
	})
	return p
}

// kind is one of the core's, of ours, or of the stubs, by its name.
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
	return schema.GroupVersionKind{Group: "cluster.x-k8s.io", Version: contract, Kind: name}
}

// object is an object of one of the core's kinds or ours, to be read or deleted.
func (w *world) object(kindName, name string) *unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(kind(kindName))
	object.SetNamespace(w.Namespace)
	object.SetName(name)
	return object
}

// get reads an object.
func (w *world) get(g gomega.Gomega, kindName, name string) *unstructured.Unstructured {
	object := w.object(kindName, name)
	g.Expect(w.Client.Get(w.t.Context(), client.ObjectKeyFromObject(object), object)).To(gomega.Succeed())
	return object
}

// list lists the objects of a kind in this world.
func (w *world) list(g gomega.Gomega, kindName string) []unstructured.Unstructured {
	list := &unstructured.UnstructuredList{}
	gvk := kind(kindName)
	gvk.Kind += "List"
	list.SetGroupVersionKind(gvk)
	g.Expect(w.Client.List(w.t.Context(), list, client.InNamespace(w.Namespace))).To(gomega.Succeed())
	return list.Items
}

// patch changes an object by a JSON merge patch.
func (w *world) patch(kindName, name, patch string) {
	w.t.Helper()
	if err := w.Client.Patch(w.t.Context(), w.object(kindName, name), client.RawPatch("application/merge-patch+json", []byte(patch))); err != nil {
		w.t.Fatal(err)
	}
}

// remove deletes an object.
func (w *world) remove(kindName, name string) {
	w.t.Helper()
	if err := w.Client.Delete(w.t.Context(), w.object(kindName, name), client.PropagationPolicy(metav1.DeletePropagationBackground)); err != nil {
		w.t.Fatal(err)
	}
}

// scale asks for another number of machines.
func (w *world) scale(pool string, replicas int) {
	w.t.Helper()
	w.patch("MachineDeployment", pool, fmt.Sprintf(`{"spec":{"replicas":%d}}`, replicas))
}

// vms are the names of the machines that have a VM, one for each VM.
func (w *world) vms(g gomega.Gomega) []string {
	vms, err := w.cloud.VMs()
	g.Expect(err).NotTo(gomega.HaveOccurred())
	names := make([]string, 0, len(vms))
	for _, vm := range vms {
		names = append(names, vm.Machine)
	}
	return names
}

// node is the Node that a machine became.
func (w *world) node(g gomega.Gomega, name string) *corev1.Node {
	node := &corev1.Node{}
	g.Expect(w.Client.Get(context.Background(), client.ObjectKey{Name: name}, node)).To(gomega.Succeed())
	return node
}

// eventually waits until the check holds.
func (w *world) eventually(check func(g gomega.Gomega)) {
	w.t.Helper()
	gomega.NewWithT(w.t).Eventually(check).WithTimeout(patience).WithPolling(100 * time.Millisecond).Should(gomega.Succeed())
}

// settled checks that there are that many Machines, all of them Running, each with a
// MillwrightMachine, a VM and a Node of its own, and nothing besides.
func (w *world) settled(g gomega.Gomega, count int) []unstructured.Unstructured {
	machines := w.list(g, "Machine")
	g.Expect(names(machines)).To(gomega.HaveLen(count), "Machines")
	g.Expect(names(w.list(g, "MillwrightMachine"))).To(gomega.HaveLen(count), "MillwrightMachines")
	g.Expect(w.vms(g)).To(gomega.HaveLen(count), "VMs")
	for _, machine := range machines {
		g.Expect(machine.GetDeletionTimestamp()).To(gomega.BeNil(), machine.GetName())
		g.Expect(text(machine, "status", "phase")).To(gomega.Equal("Running"), machine.GetName())
		node := w.node(g, text(machine, "status", "nodeRef", "name"))
		g.Expect(node.Spec.ProviderID).To(gomega.Equal(text(machine, "spec", "providerID")))
	}
	return machines
}

// isReady checks the condition Ready.
func (w *world) isReady(g gomega.Gomega, machine, status, reason string) *unstructured.Unstructured {
	ours := w.get(g, "MillwrightMachine", machine)
	g.Expect(condition(ours, "Ready")).To(gomega.And(
		gomega.HaveKeyWithValue("status", status), gomega.HaveKeyWithValue("reason", reason)), machine)
	return ours
}

// isGone checks that an object does not exist any more.
func (w *world) isGone(g gomega.Gomega, kindName, name string) {
	object := w.object(kindName, name)
	err := w.Client.Get(w.t.Context(), client.ObjectKeyFromObject(object), object)
	g.Expect(apierrors.IsNotFound(err)).To(gomega.BeTrue(), "%s %s is there, or not to be read: %v", kindName, name, err)
}

// names is for checks whose failure would otherwise print whole objects.
func names(objects []unstructured.Unstructured) []string {
	names := make([]string, 0, len(objects))
	for _, object := range objects {
		names = append(names, object.GetName())
	}
	return names
}

// text is a string in an object, or "".
func text(object unstructured.Unstructured, path ...string) string {
	value, _, _ := unstructured.NestedString(object.Object, path...)
	return value
}

// condition finds a condition in status.conditions.
func condition(object *unstructured.Unstructured, conditionType string) map[string]any {
	conditions, _, _ := unstructured.NestedSlice(object.Object, "status", "conditions")
	for _, entry := range conditions {
		if entry, ok := entry.(map[string]any); ok && entry["type"] == conditionType {
			return entry
		}
	}
	return nil
}
