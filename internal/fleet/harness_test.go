package fleet

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	"github.com/onsi/gomega"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/registry"
	"github.com/millwright-dev/millwright/driver/sim"
	"github.com/millwright-dev/millwright/internal/manager"
	"github.com/millwright-dev/millwright/test/support/env"
)

func TestMain(m *testing.M) { env.Main(m) }

// waitTimeout is how long a test waits for what usually takes seconds.
const waitTimeout = time.Minute

// world is a seed with target clusters.
type world struct {
	*testing.T
	seed *env.Env
	// access is the access to the seed with the permissions of the fleet.
	access *rest.Config
	// users are users of the targets, by their hosts.
	users map[string]*rest.Config
	// label is the label of the namespaces of this test.
	label string
	// wrap replaces the drivers of a namespace. Optional.
	wrap func(namespace string, inner driver.Driver) driver.Driver

	mu     sync.Mutex
	clouds map[string]*sim.Cloud
}

func newWorld(t *testing.T) *world {
	e := env.New(t)
	return &world{T: t, seed: e, access: e.UserWith(t, "config/rbac/fleet-role.yaml"), label: "fleet-of-" + e.Namespace, clouds: map[string]*sim.Cloud{}, users: map[string]*rest.Config{}}
}

// target returns a target cluster.
func (w *world) target(number int) *env.Cluster {
	w.Helper()
	return env.New(w.T, env.WithNumber(number)).Cluster
}

// election has short leases that survive slow requests.
var election = manager.Election{Enabled: true, LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 200 * time.Millisecond}

// settings are the settings of all clusters.
func (w *world) settings(namespace string) Settings {
	return Settings{
		Settings: manager.Settings{
			ConcurrentSyncs: 5, Election: election,
			MachineSettings: manager.MachineSettings{CreationTimeout: 5 * time.Minute},
		},
		QPS: 100, Burst: 200,
		Open: func(_ context.Context, config *manager.Config) (func(), error) {
			return func() {}, w.open(namespace, config)
		},
	}
}

// open adds a simulated driver. The VMs of a namespace survive the restart of its manager.
func (w *world) open(namespace string, config *manager.Config) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.clouds[namespace] == nil {
		w.clouds[namespace] = sim.NewCloud(sim.CloudOptions{})
	}
	nodes, err := client.New(config.Target, client.Options{Scheme: env.NewScheme()})
	if err != nil {
		return err
	}
	simulated := sim.New(sim.Config{Cloud: w.clouds[namespace], Nodes: nodes})
	config.Runnables = append(config.Runnables, simulated) // the kubelets
	var made driver.Driver = simulated
	if w.wrap != nil {
		made = w.wrap(namespace, made)
	}
	config.Drivers = registry.Only("sim", made)
	return nil
}

// cloudOf returns the simulated VMs of a namespace.
func (w *world) cloudOf(namespace string) *sim.Cloud {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.clouds[namespace]
}

// config returns the configuration of a replica.
func (w *world) config() Config {
	return Config{
		Seed: w.access, Namespace: w.seed.Namespace,
		Namespaces: labels.SelectorFromSet(labels.Set{w.label: ""}),
		Targets:    Targets{Labels: labels.SelectorFromSet(labels.Set{"target": ""})},
		Configure: func(namespace string, _ map[string]string) (Settings, error) {
			return w.settings(namespace), nil
		},
		RenewDeadline: election.RenewDeadline, RetryPeriod: election.RetryPeriod,
		Log: testr.New(w.T),
	}
}

// start runs a replica until the returned function is called.
func (w *world) start(cfg Config) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- Run(ctx, cfg) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			w.Errorf("the fleet returned %v", err)
		}
	})
	w.Cleanup(stop)
	return stop
}

// namespace creates a namespace of the fleet with a kubeconfig and a pool of machines.
func (w *world) namespace(name string, target *env.Cluster, replicas int32) string {
	w.Helper()
	name = w.seed.Namespace + "-" + name
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{w.label: ""}}}
	w.create(namespace)
	w.create(w.secret(name, "target", kubeconfigOf(w.T, w.userOf(target))))
	for _, object := range poolOf(name, replicas) {
		w.create(object)
	}
	return name
}

// userOf returns access to a target with only the permissions that a fleet and the simulated kubelets need.
func (w *world) userOf(target *env.Cluster) *rest.Config {
	w.Helper()
	if w.users[target.Admin.Host] == nil {
		w.users[target.Admin.Host] = target.UserWith(w.T, "config/rbac/target-role.yaml", "config/rbac/target-role-sim.yaml", "config/rbac/fleet-target-role.yaml")
	}
	return w.users[target.Admin.Host]
}

func (w *world) secret(namespace, name string, kubeconfig []byte) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"target": ""}},
		Data:       map[string][]byte{KubeconfigKey: kubeconfig},
	}
}

func (w *world) create(object client.Object) {
	w.Helper()
	if err := w.seed.Client.Create(w.Context(), object); err != nil {
		w.Fatal(err)
	}
}

// change changes an object and retries conflicts.
func (w *world) change(object client.Object, change func()) {
	w.Helper()
	gomega.NewWithT(w.T).Eventually(func() error {
		if err := w.seed.Client.Get(w.Context(), client.ObjectKeyFromObject(object), object); err != nil {
			return err
		}
		change()
		return w.seed.Client.Update(w.Context(), object)
	}).WithTimeout(waitTimeout).Should(gomega.Succeed())
}

// scale changes the replicas of the pool of a namespace.
func (w *world) scale(namespace string, replicas int32) {
	w.Helper()
	deployment := &v1alpha1.MachineDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "pool"}}
	w.change(deployment, func() { deployment.Spec.Replicas = replicas })
}

// awaitAvailable waits until a pool has that many available machines of the current revision, and no others.
func (w *world) awaitAvailable(namespace string, want int32) {
	w.Helper()
	gomega.NewWithT(w.T).Eventually(func(g gomega.Gomega) {
		deployment := &v1alpha1.MachineDeployment{}
		g.Expect(w.seed.Client.Get(w.Context(), client.ObjectKey{Namespace: namespace, Name: "pool"}, deployment)).To(gomega.Succeed())
		status := deployment.Status
		g.Expect([]int64{status.ObservedGeneration, int64(status.Replicas), int64(status.UpdatedReplicas), int64(status.AvailableReplicas)}).
			To(gomega.Equal([]int64{deployment.Generation, int64(want), int64(want), int64(want)}), func() string { return w.machines(namespace) })
	}).WithTimeout(waitTimeout).Should(gomega.Succeed())
}

// machines describes the machines of a namespace.
func (w *world) machines(namespace string) string {
	list, text := &v1alpha1.MachineList{}, ""
	if err := w.seed.Client.List(w.Context(), list, client.InNamespace(namespace)); err != nil {
		return err.Error()
	}
	for _, machine := range list.Items {
		text += fmt.Sprintf("%s: %s, %+v\n", machine.Name, machine.Status.CurrentStatus.Phase, machine.Status.LastOperation)
	}
	return text
}

// awaitEvent waits for an event about a namespace.
func (w *world) awaitEvent(namespace, reason string) {
	w.Helper()
	gomega.NewWithT(w.T).Eventually(func(g gomega.Gomega) {
		events, reasons := &corev1.EventList{}, []string{}
		g.Expect(w.seed.Client.List(w.Context(), events, client.InNamespace(namespace))).To(gomega.Succeed())
		for _, event := range events.Items {
			if event.InvolvedObject.Kind == "Namespace" {
				reasons = append(reasons, event.Reason)
			}
		}
		g.Expect(reasons).To(gomega.ContainElement(reason))
	}).WithTimeout(waitTimeout).Should(gomega.Succeed())
}

// holders returns the holders of the leases of a namespace.
func (w *world) holders(namespace string) (holders [2]string) {
	w.Helper()
	for i, name := range []string{v1alpha1.LeaseMachineController, v1alpha1.LeaseMachineControllerManager} {
		lease := &coordinationv1.Lease{}
		err := w.seed.Client.Get(w.Context(), client.ObjectKey{Namespace: namespace, Name: name}, lease)
		if err != nil && !apierrors.IsNotFound(err) {
			w.Error(err)
		}
		holders[i] = ptr.Deref(lease.Spec.HolderIdentity, "")
	}
	return holders
}

// awaitReleased waits until no one holds the leases of a namespace.
func (w *world) awaitReleased(namespace string) {
	w.Helper()
	gomega.NewWithT(w.T).Eventually(func() [2]string { return w.holders(namespace) }).WithTimeout(waitTimeout).Should(gomega.Equal([2]string{}))
}

// nodes returns the number of nodes in a target of the machines of a namespace.
func (w *world) nodes(target *env.Cluster, namespace string) int {
	w.Helper()
	machines, nodes := &v1alpha1.MachineList{}, &corev1.NodeList{}
	if err := w.seed.Client.List(w.Context(), machines, client.InNamespace(namespace)); err != nil {
		w.Fatal(err)
	}
	if err := target.Client.List(w.Context(), nodes); err != nil {
		w.Fatal(err)
	}
	count := 0
	for _, machine := range machines.Items {
		for _, node := range nodes.Items {
			if node.Name == machine.Labels[v1alpha1.NodeLabelKey] {
				count++
			}
		}
	}
	return count
}

// kubeconfigOf returns a kubeconfig without references to files.
func kubeconfigOf(t *testing.T, config *rest.Config) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	env.WriteKubeconfig(t, path, config)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// poolOf returns a pool of machines with its class.
func poolOf(namespace string, replicas int32) []client.Object {
	named := metav1.ObjectMeta{Namespace: namespace, Name: "pool"}
	selected := map[string]string{"name": "pool"}
	deployment := &v1alpha1.MachineDeployment{ObjectMeta: named}
	deployment.Spec.Replicas = replicas
	deployment.Spec.Selector = &metav1.LabelSelector{MatchLabels: selected}
	deployment.Spec.Template.Labels = selected
	deployment.Spec.Template.Spec.Class = v1alpha1.ClassSpec{Kind: v1alpha1.MachineClassKind, Name: "pool"}
	return []client.Object{
		&corev1.Secret{ObjectMeta: named, Data: map[string][]byte{"userData": []byte("u")}},
		&v1alpha1.MachineClass{
			ObjectMeta: named, Provider: "sim", SecretRef: &corev1.SecretReference{Namespace: namespace, Name: "pool"},
			ProviderSpec: runtime.RawExtension{Raw: []byte(`{"tags":{"kubernetes.io/cluster/c":"1","kubernetes.io/role/node":"1"}}`)},
		},
		deployment,
	}
}
