package fleet

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onsi/gomega"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/sim"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/program"
)

func TestMain(m *testing.M) {
	program.Main()
	env.Main(m)
}

// world is a seed whose namespaces a fleet serves.
type world struct {
	*testing.T
	*env.Env
	gomega.Gomega
	// dir contains the simulated VMs of all namespaces, and the kubeconfig of the seed.
	dir string
	// label is the label of the namespaces.
	label string
	// user is access to the seed with the permissions of the fleet.
	user *rest.Config
	// users are users of the targets, by their hosts.
	users map[string]*rest.Config
}

// newWorld returns a world with a target cluster.
func newWorld(t *testing.T, options ...env.Option) *world {
	t.Helper()
	e := env.NewPair(t, options...)
	w := &world{T: t, Env: e, Gomega: gomega.NewWithT(t), dir: t.TempDir(), label: "fleet-of-" + e.Namespace, users: map[string]*rest.Config{}}
	w.user = e.UserWith(t, "config/rbac/fleet-role.yaml")
	env.WriteKubeconfig(t, w.seedKubeconfig(), w.user)
	return w
}

func (w *world) seedKubeconfig() string { return filepath.Join(w.dir, "seed") }

func (w *world) create(object client.Object) {
	w.Helper()
	if err := w.Client.Create(w.Context(), object); err != nil {
		w.Fatal(err)
	}
}

// patch applies a merge patch.
func (w *world) patch(object client.Object, merge string) {
	w.Helper()
	if err := w.Client.Patch(w.Context(), object, client.RawPatch("application/merge-patch+json", []byte(merge))); err != nil {
		w.Fatal(err)
	}
}

// replica starts a replica. It is killed at the end of the test.
func (w *world) replica(more ...string) *program.Process {
	w.Helper()
	args := []string{
		"fleet", "--driver", "sim", "--sim-dir", w.dir, "--control-kubeconfig", w.seedKubeconfig(), "--port", "0",
		"--namespace", w.Env.Namespace, "--namespace-selector", w.label,
	}
	p := program.Start(w.T, append(args, more...)...)
	w.Cleanup(func() {
		p.Kill()
		if w.Failed() {
			w.Logf("the replica %d printed:\n%s", p.PID(), p.Output.Tail(100))
		}
	})
	return p
}

// leases returns the flags for leases of a duration. A process keeps its leases if it gets no CPU time for less than the deadline.
func leases(duration, deadline string) []string {
	return []string{"--leader-elect-lease-duration", duration, "--leader-elect-renew-deadline", deadline, "--leader-elect-retry-period", "1s"}
}

// eventually waits until the check succeeds.
func (w *world) eventually(check func(g gomega.Gomega)) {
	w.Helper()
	w.Eventually(check).WithTimeout(env.WaitTimeout).WithPolling(100 * time.Millisecond).Should(gomega.Succeed())
}

// cluster is a namespace of the seed with a pool of Machines, and a simulated provider.
type cluster struct {
	*world
	namespace string
	target    *env.Cluster
	cloud     *sim.Cloud
	// machines is the number of Machines.
	machines int
}

// cluster creates a namespace that the fleet serves. It has no Machines.
func (w *world) cluster(name string, target *env.Cluster) *cluster {
	w.Helper()
	c := &cluster{world: w, namespace: w.Env.Namespace + "-" + name, target: target}
	w.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: c.namespace, Labels: map[string]string{w.label: ""}}})
	w.create(&corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: c.namespace, Name: "target", Labels: map[string]string{"fleet.millwright.dev/target": "true"}},
		Data:       map[string][]byte{"kubeconfig": w.kubeconfig(w.userOf(target))},
	})
	vms := filepath.Join(w.dir, c.namespace)
	if err := os.Mkdir(vms, 0o700); err != nil {
		w.Fatal(err)
	}
	var err error
	if c.cloud, err = sim.OpenCloud(vms, sim.CloudOptions{}); err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { _ = c.cloud.Close() })
	return c
}

// userOf returns the access of a user who has only the permissions that a fleet and the simulated kubelets need in a target. The
// kubeconfigs of clusters are created from it.
func (w *world) userOf(target *env.Cluster) *rest.Config {
	w.Helper()
	user := w.users[target.Admin.Host]
	if user == nil {
		user = target.UserWith(w.T, "config/rbac/target-role.yaml", "config/rbac/target-role-sim.yaml", "config/rbac/fleet-target-role.yaml")
		w.users[target.Admin.Host] = user
	}
	return user
}

// kubeconfig returns the kubeconfig of a user.
func (w *world) kubeconfig(user *rest.Config) []byte {
	w.Helper()
	path := filepath.Join(w.dir, "target")
	env.WriteKubeconfig(w.T, path, user)
	text, err := os.ReadFile(path)
	if err != nil {
		w.Fatal(err)
	}
	return text
}

// pool creates a pool of Machines. changes change its MachineDeployment.
func (c *cluster) pool(machines int, providerSpec string, changes ...func(*v1alpha1.MachineDeployment)) {
	c.Helper()
	c.machines = machines
	named := metav1.ObjectMeta{Namespace: c.namespace, Name: "pool"}
	c.create(&corev1.Secret{ObjectMeta: named, Data: map[string][]byte{"userData": []byte("u")}})
	c.class("pool", providerSpec)
	selected := map[string]string{"name": "pool"}
	deployment := &v1alpha1.MachineDeployment{ObjectMeta: named}
	deployment.Spec.Replicas = int32(machines)
	deployment.Spec.Selector = &metav1.LabelSelector{MatchLabels: selected}
	deployment.Spec.Template.Labels = selected
	deployment.Spec.Template.Spec.Class = v1alpha1.ClassSpec{Kind: v1alpha1.MachineClassKind, Name: "pool"}
	for _, change := range changes {
		change(deployment)
	}
	c.create(deployment)
}

// class creates a class with the Secret of the pool.
func (c *cluster) class(name, providerSpec string) {
	c.Helper()
	c.create(&v1alpha1.MachineClass{
		ObjectMeta: metav1.ObjectMeta{Namespace: c.namespace, Name: name}, Provider: "sim", SecretRef: &corev1.SecretReference{Namespace: c.namespace, Name: "pool"},
		ProviderSpec: runtime.RawExtension{Raw: []byte(providerSpec)},
	})
}

// oneByOne permits one additional Machine during an update, and no unavailable Machines.
func oneByOne(deployment *v1alpha1.MachineDeployment) {
	none, one := intstr.FromInt32(0), intstr.FromInt32(1)
	deployment.Spec.Strategy = v1alpha1.MachineDeploymentStrategy{
		Type:          v1alpha1.RollingUpdateMachineDeploymentStrategyType,
		RollingUpdate: &v1alpha1.RollingUpdateMachineDeployment{UpdateConfiguration: v1alpha1.UpdateConfiguration{MaxUnavailable: &none, MaxSurge: &one}},
	}
}

// deployment returns the MachineDeployment of the pool as a key.
func (c *cluster) deployment() *v1alpha1.MachineDeployment {
	return &v1alpha1.MachineDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: c.namespace, Name: "pool"}}
}

// update begins a rolling update.
func (c *cluster) update(version string) {
	c.Helper()
	c.patch(c.deployment(), `{"spec":{"template":{"metadata":{"annotations":{"version":"`+version+`"}}}}}`)
}

// complete reports whether all Machines of a pool are of the current revision and available.
func complete(deployment *v1alpha1.MachineDeployment) bool {
	status, desired := deployment.Status, deployment.Spec.Replicas
	return status.ObservedGeneration == deployment.Generation && status.Replicas == desired && status.UpdatedReplicas == desired && status.AvailableReplicas == desired
}

// settled checks that all Machines are available and of the current revision, and that exactly one VM was created for each.
func (c *cluster) settled(g gomega.Gomega) {
	deployment := c.deployment()
	g.Expect(c.Client.Get(c.Context(), client.ObjectKeyFromObject(deployment), deployment)).To(gomega.Succeed())
	g.Expect(complete(deployment)).To(gomega.BeTrue(), "%s: %+v", c.namespace, deployment.Status)
	machines, desired, existing := &v1alpha1.MachineList{}, []string{}, []string{}
	g.Expect(c.Client.List(c.Context(), machines, client.InNamespace(c.namespace))).To(gomega.Succeed())
	for _, machine := range machines.Items {
		desired = append(desired, machine.Spec.ProviderID)
	}
	vms, err := c.cloud.VMs()
	g.Expect(err).NotTo(gomega.HaveOccurred())
	for _, vm := range vms {
		existing = append(existing, vm.ProviderID)
	}
	g.Expect(existing).To(gomega.ConsistOf(desired), "VMs of %s", c.namespace)
	g.Expect(existing).To(gomega.HaveLen(c.machines), "VMs of %s", c.namespace)
}

// journal returns the provider's record of driver calls by the replicas.
func (c *cluster) journal() []sim.Entry {
	c.Helper()
	entries, err := c.cloud.Journal()
	if err != nil {
		c.Fatal(err)
	}
	return entries
}

// created returns how many VMs each process has created.
func (c *cluster) created() map[int]int {
	c.Helper()
	count := map[int]int{}
	for _, entry := range c.journal() {
		if entry.Effect == sim.Created {
			count[entry.PID]++
		}
	}
	return count
}

// wantOneVMEach checks that at most one VM was ever created for each Machine.
func (c *cluster) wantOneVMEach() {
	c.Helper()
	for machine, history := range sim.Histories(c.journal()) {
		if len(history.ProviderIDs) > 1 {
			c.Errorf("several VMs were created for machine %s: %s", machine, strings.Join(history.ProviderIDs, ", "))
		}
	}
}

// held returns the holders of the leases of a cluster. They change when the manager of the cluster is restarted.
func (c *cluster) held() (holders [2]string) {
	c.Helper()
	for i, name := range []string{v1alpha1.LeaseMachineController, v1alpha1.LeaseMachineControllerManager} {
		lease := &coordinationv1.Lease{}
		if err := c.Client.Get(c.Context(), client.ObjectKey{Namespace: c.namespace, Name: name}, lease); err != nil {
			c.Fatal(err)
		}
		holders[i] = ptr.Deref(lease.Spec.HolderIdentity, "")
	}
	return holders
}

// names returns the sorted names of the Machines.
func (c *cluster) names() (names []string) {
	c.Helper()
	list := &v1alpha1.MachineList{}
	if err := c.Client.List(c.Context(), list, client.InNamespace(c.namespace)); err != nil {
		c.Fatal(err)
	}
	for _, machine := range list.Items {
		names = append(names, machine.Name)
	}
	slices.Sort(names)
	return names
}
