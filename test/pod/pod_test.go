package pod

import (
	"context"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/env"
	"github.com/millwright-dev/millwright/test/fixture"
	"github.com/millwright-dev/millwright/test/node"
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

func newPlace(t *testing.T) *place {
	t.Helper()
	e := env.New(t, env.WithScheduler())
	layout := filepath.Join(t.TempDir(), "image")
	root, err := env.Root()
	if err != nil {
		t.Fatal(err)
	}
	command := exec.CommandContext(t.Context(), filepath.Join(root, "hack", "image.sh"), layout, version, image)
	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("hack/image.sh: %v\n%s", err, out)
	}
	p := &place{T: t, env: e, clients: kubernetes.NewForConfigOrDie(e.Admin)}
	p.node = node.Start(t, e.ControlPlane, layout)
	return p
}

// TestInAPod: the manifests of config/machine, installed in a cluster that runs their Pods.
func TestInAPod(t *testing.T) {
	p := newPlace(t)
	p.install()
	p.enforcesPodSecurity()
	p.awaitReady(installed, 2)
	p.isConfined()
	p.createMisconfigured()
	p.makesMachine("first")
	p.handOver()
	p.makesMachine("second")
	p.explains("second")
	p.misconfigured()
	p.readsItsTokenAgain()
}

func (p *place) create(object client.Object) {
	p.Helper()
	if err := p.env.Client.Create(p.Context(), object); err != nil {
		p.Fatal(err)
	}
}

// patience is how long anything may take under load.
const patience = 2 * time.Minute

func (p *place) eventually(check func(g gomega.Gomega)) {
	p.Helper()
	gomega.NewWithT(p.T).Eventually(check).WithTimeout(patience).WithPolling(50 * time.Millisecond).Should(gomega.Succeed())
}

// awaitReady waits until all replicas are, by their probes.
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

// holder returns the Pod that holds a lease.
func holder(lease *coordinationv1.Lease) string {
	pod, _, _ := strings.Cut(ptr.Deref(lease.Spec.HolderIdentity, ""), "_")
	return pod
}

// handOver ends the leader as a rollout or a drain does, and checks that it ends in order and that
// the other takes over at once.
func (p *place) handOver() {
	p.Helper()
	lease := &coordinationv1.Lease{}
	if err := p.env.Client.Get(p.Context(), client.ObjectKey{Namespace: p.env.Namespace, Name: v1alpha1.LeaseMachineController}, lease); err != nil {
		p.Fatal(err)
	}
	leader := &corev1.Pod{}
	if err := p.env.Client.Get(p.Context(), client.ObjectKey{Namespace: p.env.Namespace, Name: holder(lease)}, leader); err != nil {
		p.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(p.Context(), patience)
	defer cancel()
	leases, err := p.clients.CoordinationV1().Leases(p.env.Namespace).Watch(ctx, metav1.SingleObject(lease.ObjectMeta))
	if err != nil {
		p.Fatal(err)
	}
	pods, err := p.clients.CoreV1().Pods(p.env.Namespace).Watch(ctx, metav1.SingleObject(leader.ObjectMeta))
	if err != nil {
		p.Fatal(err)
	}
	began := time.Now()
	if err := p.env.Client.Delete(p.Context(), leader); err != nil {
		p.Fatal(err)
	}
	p.changesHands(leases.ResultChan(), leader.Name, began)
	p.endsInOrder(pods.ResultChan())
}

// changesHands checks that a lease goes from the leader to another Pod, soon after a time.
func (p *place) changesHands(leases <-chan watch.Event, leader string, began time.Time) {
	p.Helper()
	var released, taken time.Duration
	for event := range leases {
		of := holder(event.Object.(*coordinationv1.Lease))
		if of == "" {
			released = time.Since(began)
		}
		if of != "" && of != leader {
			taken = time.Since(began)
			break
		}
	}
	p.Logf("the leader was deleted; its lease was free after %v, and taken after %v", released, taken)
	if released == 0 || taken == 0 || taken > handOverLimit {
		p.Errorf("the hand-over took %v, with the lease free after %v", taken, released)
	}
}

// endsInOrder checks the exit status of the containers of a Pod that is being deleted.
func (p *place) endsInOrder(pods <-chan watch.Event) {
	p.Helper()
	var last *corev1.Pod
	for event := range pods {
		last = event.Object.(*corev1.Pod)
		if event.Type == watch.Deleted {
			break
		}
	}
	for _, container := range last.Status.ContainerStatuses {
		if ended := container.State.Terminated; ended == nil || ended.ExitCode != 0 {
			p.Errorf("%s of the leader ended with %+v", container.Name, container.State)
		}
	}
}

// handOverLimit is from the request to delete the leader's Pod until another holds its lease, at most: less
// than a lease takes to expire. On an idle machine it is a second; TestReleasedLeasesAreTakenSoon holds what is
// up to the program.
const handOverLimit = 10 * time.Second
