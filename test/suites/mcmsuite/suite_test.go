package mcmsuite

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/sim"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/fixture"
	"github.com/millwright-dev/millwright/test/support/program"
)

func TestMain(m *testing.M) {
	program.Main()
	env.Main(m)
}

// waitTimeout is the timeout of MCM's suite.
const waitTimeout = 300 * time.Second

// The objects of MCM's suite.
const (
	machineName    = "test-machine"
	deploymentName = "test-machine-deployment"
	firstClass     = "test-mc-v1"
	secondClass    = "test-mc-v2"
)

// suite is the environment that MCM's suite prepares: a control cluster with MCM's CRDs, a target cluster that
// has a node, two classes, and both processes.
type suite struct {
	*env.Env
	t     *testing.T
	cloud *sim.Cloud
	// initial is the number of Ready nodes at the beginning.
	initial int
	// processes contains the processes by name, and ports their ports.
	processes map[string]*program.Process
	ports     map[string]int
}

func newSuite(t *testing.T) *suite {
	t.Helper()
	s := &suite{Env: env.NewPair(t, env.WithOwn()), t: t, processes: map[string]*program.Process{}, ports: map[string]int{}}
	s.InstallMCMsCRDs(t)
	dir := t.TempDir()
	cloud, err := sim.OpenCloud(filepath.Join(dir, "sim"), sim.CloudOptions{})
	s.must(err)
	s.cloud = cloud
	t.Cleanup(func() { s.must(cloud.Close()) })

	node := fixture.Node(func(node *corev1.Node) { node.Name, node.UID, node.Generation = "old", "", 0 })
	conditions := node.Status
	s.must(s.Target.Client.Create(t.Context(), node))
	node.Status = conditions
	s.must(s.Target.Client.Status().Update(t.Context(), node))
	s.initial = len(s.readyNodes())

	env.WriteKubeconfig(t, filepath.Join(dir, "control"), s.Admin)
	env.WriteKubeconfig(t, filepath.Join(dir, "target"), s.Target.Admin)
	access := []string{
		"--control-kubeconfig=" + filepath.Join(dir, "control"), "--target-kubeconfig=" + filepath.Join(dir, "target"), "--namespace=" + s.Namespace,
	}
	s.start("machine-controller", append(access, "--driver=sim", "--sim-dir="+filepath.Join(dir, "sim"))...)
	s.start("machine-controller-manager", append(access, "--machine-safety-overshooting-period=300ms")...)
	s.create(secret(s.Namespace), class(s.Namespace, firstClass), class(s.Namespace, secondClass))
	return s
}

// start starts a process as Gardener does: by MCM's name, without a subcommand.
func (s *suite) start(name string, flags ...string) {
	s.t.Helper()
	port, err := s.ControlPlane.PortFor(name, 0)
	s.must(err)
	command := program.Command(context.Background(), append(flags, "--address=127.0.0.1", fmt.Sprintf("--port=%d", port), "--v=3")...)
	command.Args[0] = "./" + name
	process := program.StartOther(s.t, command)
	s.processes[name], s.ports[name] = process, port
	s.t.Cleanup(func() {
		process.Kill()
		if s.t.Failed() {
			s.t.Logf("%s:\n%s", name, process.Output.Tail(60))
		}
	})
}

// alive checks what MCM's suite checks before each specification.
func (s *suite) alive() {
	s.t.Helper()
	for name, process := range s.processes {
		select {
		case <-process.Done():
			s.t.Fatalf("%s has ended", name)
		default:
		}
	}
	nodes := &corev1.NodeList{}
	s.must(s.Target.Client.List(s.t.Context(), nodes))
	if ready := s.readyNodes(); len(ready) != len(nodes.Items) {
		s.t.Fatalf("only %q of %d nodes are ready", ready, len(nodes.Items))
	}
}

// page reads a page of a process.
func (s *suite) page(process, name string) string {
	s.t.Helper()
	request, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/%s", s.ports[process], name), nil)
	s.must(err)
	response, err := http.DefaultClient.Do(request)
	s.must(err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	s.must(err)
	return string(text)
}

func (s *suite) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *suite) create(objects ...client.Object) {
	s.t.Helper()
	for _, object := range objects {
		s.must(s.Client.Create(s.t.Context(), object))
	}
}

func (s *suite) eventually(check func(g gomega.Gomega)) {
	s.t.Helper()
	gomega.NewWithT(s.t).Eventually(check).WithTimeout(waitTimeout).WithPolling(50 * time.Millisecond).Should(gomega.Succeed())
}

// readyNodes returns the names of the Ready nodes of the target cluster.
func (s *suite) readyNodes() []string {
	s.t.Helper()
	nodes := &corev1.NodeList{}
	s.must(s.Target.Client.List(s.t.Context(), nodes))
	var ready []string
	for _, node := range nodes.Items {
		if slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
		}) {
			ready = append(ready, node.Name)
		}
	}
	return ready
}

// hasNodes waits until the target cluster has exactly that many more Ready nodes than at the beginning.
func (s *suite) hasNodes(more int) {
	s.t.Helper()
	s.eventually(func(g gomega.Gomega) {
		nodes := &corev1.NodeList{}
		g.Expect(s.Target.Client.List(s.t.Context(), nodes)).To(gomega.Succeed())
		g.Expect(nodes.Items).To(gomega.HaveLen(s.initial + more))
		g.Expect(s.readyNodes()).To(gomega.HaveLen(s.initial + more))
	})
}

// machines returns the phases of all Machines that are not being deleted, by name.
func (s *suite) machines() map[string]v1alpha1.MachinePhase {
	s.t.Helper()
	list := &v1alpha1.MachineList{}
	s.must(s.Client.List(s.t.Context(), list, client.InNamespace(s.Namespace)))
	phases := map[string]v1alpha1.MachinePhase{}
	for i := range list.Items {
		if list.Items[i].DeletionTimestamp.IsZero() {
			phases[list.Items[i].Name] = list.Items[i].Status.CurrentStatus.Phase
		}
	}
	return phases
}

func (s *suite) names() []string { return slices.Sorted(maps.Keys(s.machines())) }

func (s *suite) deployment(g gomega.Gomega) *v1alpha1.MachineDeployment {
	deployment := &v1alpha1.MachineDeployment{}
	g.Expect(s.Client.Get(s.t.Context(), client.ObjectKey{Namespace: s.Namespace, Name: deploymentName}, deployment)).To(gomega.Succeed())
	return deployment
}

// change applies a user's change to the MachineDeployment.
func (s *suite) change(format string, values ...any) {
	s.t.Helper()
	deployment := &v1alpha1.MachineDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: deploymentName}}
	s.must(s.Client.Patch(s.t.Context(), deployment, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, format, values...))))
}

func (s *suite) scale(replicas int) { s.t.Helper(); s.change(`{"spec":{"replicas":%d}}`, replicas) }
