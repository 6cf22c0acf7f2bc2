package pod

import (
	"context"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/fixture"
	"github.com/millwright-dev/millwright/test/support/node"
	"github.com/millwright-dev/millwright/test/support/tier"
)

const (
	image   = "registry.example.com/millwright"
	version = "v0.1.0"
)

// place is a namespace in a cluster with a node.
type place struct {
	*testing.T
	env     *env.Env
	node    *node.Node
	clients *kubernetes.Clientset
}

// newPlace starts a node with the image of Millwright, and further images from the directories of their layouts.
func newPlace(t *testing.T, more ...func(*place) string) *place {
	t.Helper()
	e := env.New(t, env.WithScheduler())
	layout := filepath.Join(t.TempDir(), "image")
	root, err := env.Sources()
	if err != nil {
		t.Fatal(err)
	}
	command := exec.CommandContext(t.Context(), filepath.Join(root, "hack", "image.sh"), layout, version, image)
	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("hack/image.sh: %v\n%s", err, out)
	}
	p := &place{T: t, env: e, clients: kubernetes.NewForConfigOrDie(e.Admin)}
	layouts := []string{layout}
	for _, build := range more {
		layouts = append(layouts, build(p))
	}
	p.node = node.Start(t, e.ControlPlane, layouts...)
	t.Cleanup(p.describe)
	return p
}

// describe logs the state of all containers if the test failed.
func (p *place) describe() {
	if !p.Failed() {
		return
	}
	pods := &corev1.PodList{}
	if err := p.env.Client.List(context.WithoutCancel(p.Context()), pods, client.InNamespace(p.env.Namespace)); err != nil {
		p.Log(err)
	}
	for i := range pods.Items {
		for _, container := range pods.Items[i].Status.ContainerStatuses {
			p.Logf("pod %s, container %s: ready %v, %d restarts, %v, before %v",
				pods.Items[i].Name, container.Name, container.Ready, container.RestartCount, &container.State, &container.LastTerminationState)
		}
	}
}

// TestManagerPod_CreatesMachines installs the manifests of config/machine in a cluster that runs their Pods.
func TestManagerPod_CreatesMachines(t *testing.T) {
	newPlace(t).runs()
}

// runs installs the manifests, checks the processes of the Pods, and lets them create a Machine.
func (p *place) runs() {
	p.Helper()
	p.install()
	p.enforcesPodSecurity()
	p.awaitReady(installed, 2)
	processes := p.processes()
	if len(processes) != 4 {
		p.Fatalf("processes: %v", processes)
	}
	p.isConfined(processes)
	p.makesMachine("first")
}

// TestManagerPod_HandsOverToMCM continues where TestManagerPod_CreatesMachines stops.
func TestManagerPod_HandsOverToMCM(t *testing.T) {
	tier.All(t)
	p := newPlace(t, (*place).driverLayout)
	p.runs()
	p.createMisconfigured()
	p.handOver(v1alpha1.LeaseMachineController)
	p.handOver(v1alpha1.LeaseMachineControllerManager)
	p.makesMachine("second")
	p.explains("second")
	p.misconfigured()
	p.readsItsTokenAgain()
	p.drivesFromSidecar()
}

func (p *place) create(object client.Object) {
	p.Helper()
	if err := p.env.Client.Create(p.Context(), object); err != nil {
		p.Fatal(err)
	}
}

// waitTimeout is how long any operation may take under load.
const waitTimeout = env.WaitTimeout

func (p *place) eventually(check func(g gomega.Gomega)) {
	p.Helper()
	gomega.NewWithT(p.T).Eventually(check).WithTimeout(waitTimeout).WithPolling(50 * time.Millisecond).Should(gomega.Succeed())
}

// awaitReady waits until all replicas are ready.
func (p *place) awaitReady(name string, replicas int32) {
	p.Helper()
	p.eventually(func(g gomega.Gomega) {
		g.Expect(p.node.Done()).NotTo(gomega.BeClosed())
		deployment := &appsv1.Deployment{}
		g.Expect(p.env.Client.Get(p.Context(), client.ObjectKey{Namespace: p.env.Namespace, Name: name}, deployment)).To(gomega.Succeed())
		g.Expect(deployment.Status.ReadyReplicas).To(gomega.Equal(replicas), "%+v", deployment.Status)
	})
}

// makesMachine checks that a simulated machine becomes a node.
func (p *place) makesMachine(name string) {
	p.Helper()
	class := fixture.In(p.env.Namespace, fixture.Named(name, fixture.MachineClass(func(class *v1alpha1.MachineClass) {
		class.Provider, class.ProviderSpec.Raw = "sim", []byte(`{}`)
		class.SecretRef.Namespace, class.SecretRef.Name = p.env.Namespace, name
	})))
	machine := fixture.In(p.env.Namespace, fixture.Named(name, fixture.Machine(func(machine *v1alpha1.Machine) { machine.Spec.Class.Name = name })))
	p.create(fixture.In(p.env.Namespace, fixture.Named(name, fixture.Secret())))
	p.create(class)
	p.create(machine)
	p.eventually(func(g gomega.Gomega) {
		g.Expect(p.env.Client.Get(p.Context(), client.ObjectKeyFromObject(machine), machine)).To(gomega.Succeed())
		g.Expect(machine.Status.CurrentStatus.Phase).To(gomega.Equal(v1alpha1.MachineRunning), "%+v", machine.Status)
	})
}
