package fleet

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/sim"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/program"
	"github.com/millwright-dev/millwright/test/support/tier"
)

func TestMain(m *testing.M) {
	program.Main()
	env.Main(m)
}

const (
	// replicas is the number of Machines.
	replicas = 8
	// providerSpec has slow calls, so that some are in progress when a process is suspended.
	providerSpec = `{"latency":"1s","joinDelay":"1s","tags":{"kubernetes.io/cluster/c":"1","kubernetes.io/role/node":"1"}}`
)

// world is a seed with one namespace, its target, and a simulated provider.
type world struct {
	*testing.T
	*env.Env
	gomega.Gomega
	// namespace contains the Machines.
	namespace string
	// dir contains the simulated VMs of all namespaces, and the kubeconfig of the seed.
	dir   string
	cloud *sim.Cloud
	// label is the label of the namespace.
	label string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	e := env.NewPair(t)
	w := &world{T: t, Env: e, Gomega: gomega.NewWithT(t), namespace: e.Namespace + "-cluster", dir: t.TempDir(), label: "fleet-of-" + e.Namespace}
	env.WriteKubeconfig(t, w.seedKubeconfig(), e.UserWith(t, "config/rbac/fleet-role.yaml"))
	w.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.namespace, Labels: map[string]string{w.label: ""}}})
	target := filepath.Join(w.dir, "target")
	env.WriteKubeconfig(t, target, e.Target.UserWith(t, "config/rbac/target-role.yaml", "config/rbac/target-role-sim.yaml", "config/rbac/fleet-target-role.yaml"))
	kubeconfig, err := os.ReadFile(target)
	if err != nil {
		t.Fatal(err)
	}
	w.create(&corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "target", Labels: map[string]string{"fleet.millwright.dev/target": "true"}},
		Data:       map[string][]byte{"kubeconfig": kubeconfig},
	})
	vms := filepath.Join(w.dir, w.namespace)
	if err := os.Mkdir(vms, 0o700); err != nil {
		t.Fatal(err)
	}
	if w.cloud, err = sim.OpenCloud(vms, sim.CloudOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.cloud.Close() })
	return w
}

func (w *world) seedKubeconfig() string { return filepath.Join(w.dir, "seed") }

func (w *world) create(object client.Object) {
	w.Helper()
	if err := w.Client.Create(w.Context(), object); err != nil {
		w.Fatal(err)
	}
}

// replica starts a replica. It is killed at the end of the test.
func (w *world) replica() *program.Process {
	w.Helper()
	p := program.Start(w.T,
		"fleet", "--driver", "sim", "--sim-dir", w.dir, "--control-kubeconfig", w.seedKubeconfig(), "--port", "0",
		"--namespace", w.Env.Namespace, "--namespace-selector", w.label,
		"--leader-elect-lease-duration", "8s", "--leader-elect-renew-deadline", "6s", "--leader-elect-retry-period", "1s")
	w.Cleanup(func() {
		p.Kill()
		if w.Failed() {
			w.Logf("the replica %d printed:\n%s", p.PID(), p.Output.Tail(100))
		}
	})
	return p
}

// pool creates a pool of Machines and returns its MachineDeployment.
func (w *world) pool() *v1alpha1.MachineDeployment {
	w.Helper()
	named := metav1.ObjectMeta{Namespace: w.namespace, Name: "pool"}
	w.create(&corev1.Secret{ObjectMeta: named, Data: map[string][]byte{"userData": []byte("u")}})
	w.create(&v1alpha1.MachineClass{
		ObjectMeta: named, Provider: "sim", SecretRef: &corev1.SecretReference{Namespace: w.namespace, Name: "pool"},
		ProviderSpec: runtime.RawExtension{Raw: []byte(providerSpec)},
	})
	selected := map[string]string{"name": "pool"}
	deployment := &v1alpha1.MachineDeployment{ObjectMeta: named}
	deployment.Spec.Replicas = replicas
	deployment.Spec.Selector = &metav1.LabelSelector{MatchLabels: selected}
	deployment.Spec.Template.Labels = selected
	deployment.Spec.Template.Spec.Class = v1alpha1.ClassSpec{Kind: v1alpha1.MachineClassKind, Name: "pool"}
	w.create(deployment)
	return deployment
}

// eventually waits until the check succeeds.
func (w *world) eventually(check func(g gomega.Gomega)) {
	w.Helper()
	w.Eventually(check).WithTimeout(env.WaitTimeout).WithPolling(100 * time.Millisecond).Should(gomega.Succeed())
}

// settled checks that all Machines are of the current revision and available, and that each has the only VM that was created
// for it.
func (w *world) settled(g gomega.Gomega, deployment *v1alpha1.MachineDeployment) {
	g.Expect(w.Client.Get(w.Context(), client.ObjectKeyFromObject(deployment), deployment)).To(gomega.Succeed())
	status := deployment.Status
	g.Expect([]int64{status.ObservedGeneration, int64(status.Replicas), int64(status.UpdatedReplicas), int64(status.AvailableReplicas)}).
		To(gomega.Equal([]int64{deployment.Generation, replicas, replicas, replicas}))
	machines, desired, existing := &v1alpha1.MachineList{}, []string{}, []string{}
	g.Expect(w.Client.List(w.Context(), machines, client.InNamespace(w.namespace))).To(gomega.Succeed())
	for _, machine := range machines.Items {
		desired = append(desired, machine.Spec.ProviderID)
	}
	vms, err := w.cloud.VMs()
	g.Expect(err).NotTo(gomega.HaveOccurred())
	for _, vm := range vms {
		existing = append(existing, vm.ProviderID)
	}
	g.Expect(existing).To(gomega.ConsistOf(desired), "VMs")
}

// created returns how many VMs each process has created.
func (w *world) created() map[int]int {
	w.Helper()
	entries, err := w.cloud.Journal()
	if err != nil {
		w.Fatal(err)
	}
	count := map[int]int{}
	for _, entry := range entries {
		if entry.Effect == sim.Created {
			count[entry.PID]++
		}
	}
	return count
}

// suspend stops a process where it does not hold the lock of the simulated VMs, which would stop the other processes, too.
func (w *world) suspend(process *program.Process) {
	w.Helper()
	for range 10 {
		w.signal(process, syscall.SIGSTOP)
		read := make(chan struct{})
		go func() {
			defer close(read)
			_, _ = w.cloud.VMs() // it waits for the lock
		}()
		select {
		case <-read:
			return
		case <-time.After(2 * time.Second):
			w.signal(process, syscall.SIGCONT)
		}
		<-read
	}
	w.Fatal("the process always holds the lock of the simulated VMs")
}

func (w *world) signal(process *program.Process, signal syscall.Signal) {
	w.Helper()
	if err := syscall.Kill(process.PID(), signal); err != nil {
		w.Fatal(err)
	}
}

// TestFleet_SuspendedReplica suspends the replica that serves a namespace in the middle of a rollout, until the other one has
// taken over, and then resumes it. The rollout completes with one VM for each Machine.
func TestFleet_SuspendedReplica(t *testing.T) {
	tier.All(t)
	w := newWorld(t)
	processes := []*program.Process{w.replica(), w.replica()}
	deployment := w.pool()
	w.eventually(func(g gomega.Gomega) { w.settled(g, deployment) })

	before := w.created()
	patch := client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"template":{"metadata":{"annotations":{"version":"2"}}}}}`))
	if err := w.Client.Patch(t.Context(), deployment, patch); err != nil {
		t.Fatal(err)
	}
	var serving *program.Process
	w.eventually(func(g gomega.Gomega) {
		now := w.created()
		for _, process := range processes {
			if now[process.PID()] > before[process.PID()] {
				serving = process
			}
		}
		g.Expect(serving).NotTo(gomega.BeNil(), "no process has begun the rollout")
	})
	w.suspend(serving)
	other := processes[0]
	if other == serving {
		other = processes[1]
	}
	before = w.created()
	w.eventually(func(g gomega.Gomega) {
		g.Expect(w.created()[other.PID()]).To(gomega.BeNumerically(">", before[other.PID()]), "VMs that the other replica created")
	})
	if err := w.Client.Get(t.Context(), client.ObjectKeyFromObject(deployment), deployment); err != nil {
		t.Fatal(err)
	}
	if deployment.Status.UpdatedReplicas == replicas {
		t.Error("the rollout was complete before the replica was resumed")
	}
	w.signal(serving, syscall.SIGCONT)
	w.eventually(func(g gomega.Gomega) { w.settled(g, deployment) })

	for _, process := range processes {
		process.Stop()
	}
	entries, err := w.cloud.Journal()
	if err != nil {
		t.Fatal(err)
	}
	for machine, history := range sim.Histories(entries) {
		if len(history.ProviderIDs) > 1 {
			t.Errorf("several VMs were created for machine %s: %s", machine, strings.Join(history.ProviderIDs, ", "))
		}
	}
}
