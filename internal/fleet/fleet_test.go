package fleet

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/go-logr/logr/testr"
	"github.com/onsi/gomega"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/internal/manager"
)

// TestFleet_ServesTwoClusters checks that each cluster gets its own nodes, that wrong input in one namespace stops only that
// one, and that it continues when the input is corrected.
func TestFleet_ServesTwoClusters(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	one, two := w.target(1), w.target(2)
	first, second := w.namespace("one", one, 2), w.namespace("two", two, 1)
	w.start(w.config())
	w.awaitAvailable(first, 2)
	w.awaitAvailable(second, 1)
	if got := [4]int{w.nodes(one, first), w.nodes(two, first), w.nodes(one, second), w.nodes(two, second)}; got != [4]int{2, 0, 0, 1} {
		t.Errorf("nodes by cluster and namespace: %v", got)
	}

	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: second, Name: "target"}}
	w.change(secret, func() { secret.Data[KubeconfigKey] = kubeconfigOf(t, one.Admin) })
	w.awaitEvent(second, ReasonTargetChanged)
	w.awaitReleased(second)
	w.change(secret, func() { secret.Data[KubeconfigKey] = kubeconfigOf(t, w.seed.Admin) })
	w.awaitEvent(second, ReasonTargetIsSeed)
	another := w.secret(second, "another", nil)
	w.create(another)
	w.awaitEvent(second, ReasonSecretAmbiguous)
	w.scale(second, 2)
	w.scale(first, 3)
	w.awaitAvailable(first, 3)

	if err := w.seed.Client.Delete(t.Context(), another); err != nil {
		t.Fatal(err)
	}
	w.change(secret, func() { secret.Data[KubeconfigKey] = kubeconfigOf(t, two.Admin) })
	w.awaitAvailable(second, 2)
	if got := w.nodes(two, second); got != 2 {
		t.Errorf("%d nodes", got)
	}
}

// TestFleet_DeadTargetDoesNotAffectOthers checks that a cluster is served next to one whose target does not respond, and that
// the other continues when its target responds.
func TestFleet_DeadTargetDoesNotAffectOthers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	target := w.target(1)
	dead, good := w.namespace("dead", target, 1), w.namespace("good", target, 1)
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: dead, Name: "target"}}
	nowhere := rest.CopyConfig(target.Admin)
	nowhere.Host = "https://127.0.0.1:1"
	w.change(secret, func() { secret.Data[KubeconfigKey] = kubeconfigOf(t, nowhere) })
	w.start(w.config())
	w.awaitAvailable(good, 1)
	gomega.NewWithT(t).Eventually(func() string { return w.holders(dead)[0] }).WithTimeout(waitTimeout).ShouldNot(gomega.BeEmpty())
	held := w.holders(good)
	w.change(secret, func() { secret.Data[KubeconfigKey] = kubeconfigOf(t, target.Admin) })
	w.awaitAvailable(dead, 1)
	if got := w.holders(good); got != held {
		t.Errorf("the leases of the other namespace moved from %v to %v", held, got)
	}
}

// TestFleet_StopsWhileStandingBy checks that the fleet takes no leases of another process, and can leave the namespace.
func TestFleet_StopsWhileStandingBy(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	name := w.namespace("one", w.target(1), 1)
	now := metav1.NowMicro()
	w.create(&coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: v1alpha1.LeaseMachineController},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: ptr.To("mcm"), LeaseDurationSeconds: ptr.To(int32(3600)), AcquireTime: &now, RenewTime: &now},
	})
	stop := w.start(w.config())
	w.awaitStandby(name)
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	w.change(namespace, func() { delete(namespace.Labels, w.label) })
	w.awaitEvent(name, ReasonLeft)
	stop()
	if got := w.holders(name); got != [2]string{"mcm", ""} {
		t.Errorf("the leases are held by %q", got)
	}
}

// TestFleet_GivesUpLostLeases checks that the controllers of a namespace stop when another process has taken one of its
// leases, as a single manager does.
func TestFleet_GivesUpLostLeases(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	name := w.namespace("one", w.target(1), 1)
	w.start(w.config())
	w.awaitAvailable(name, 1)
	lease, now := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: v1alpha1.LeaseMachineController}}, metav1.NowMicro()
	w.change(lease, func() {
		lease.Spec = coordinationv1.LeaseSpec{HolderIdentity: ptr.To("other"), LeaseDurationSeconds: ptr.To(int32(3600)), AcquireTime: &now, RenewTime: &now}
	})
	w.awaitEvent(name, ReasonFailed)
	if got := w.holders(name)[0]; got != "other" {
		t.Errorf("the lease is held by %s", got)
	}
}

// TestFleet_HandsOverAndBack checks that a namespace moves from a single manager to the fleet and back in mid-rollout, and
// that its target is bound to it afterwards.
func TestFleet_HandsOverAndBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	target := w.target(1)
	name := w.namespace("one", target, 3)
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	w.change(namespace, func() { delete(namespace.Labels, w.label) })
	single := func() (stop func()) {
		ctx, cancel := context.WithCancel(context.Background())
		cfg := manager.Config{Settings: w.settings(name).Settings, Control: w.seed.Admin, Target: target.Admin, Log: testr.New(t)}
		cfg.Namespace = name
		if err := w.open(name, &cfg); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- manager.Run(ctx, cfg) }()
		return func() {
			cancel()
			if err := <-ended; err != nil {
				t.Errorf("the single manager returned %v", err)
			}
		}
	}
	stop := single()
	w.awaitAvailable(name, 3)
	held := w.holders(name)

	w.start(w.config())
	w.change(namespace, func() { namespace.Labels[w.label] = "" })
	w.awaitStandby(name)
	w.awaitMidRollout(name, "2")
	if got := w.holders(name); got != held {
		t.Errorf("the fleet took the leases %v of a running manager: %v", held, got)
	}
	stop()
	w.wantMidRollout(name)
	w.awaitAvailable(name, 3)
	if got := w.holders(name); got[0] == held[0] || got[0] == "" {
		t.Errorf("the leases are held by %v", got)
	}

	w.awaitMidRollout(name, "3")
	w.change(namespace, func() { delete(namespace.Labels, w.label) })
	w.awaitReleased(name)
	w.wantMidRollout(name)
	stop = single()
	defer stop()
	w.awaitAvailable(name, 3)
	w.awaitEvent(name, ReasonLeft)
	w.mu.Lock()
	defer w.mu.Unlock()
	if vms, err := w.clouds[name].VMs(); err != nil || len(vms) != 3 {
		t.Errorf("%d VMs exist for 3 machines, %v", len(vms), err)
	}
}

// awaitStandby waits until the fleet has identified the target of a namespace, which it does before it holds the leases.
func (w *world) awaitStandby(namespace string) {
	w.Helper()
	gomega.NewWithT(w.T).Eventually(func() string {
		lease := &coordinationv1.Lease{}
		if err := w.seed.Client.Get(w.Context(), client.ObjectKey{Namespace: namespace, Name: v1alpha1.LeaseMachineController}, lease); err != nil {
			return ""
		}
		return lease.Annotations[AnnotationTarget]
	}).WithTimeout(waitTimeout).ShouldNot(gomega.BeEmpty())
}

// awaitMidRollout starts a rolling update and waits until it has created a machine.
func (w *world) awaitMidRollout(namespace, version string) {
	w.Helper()
	deployment := &v1alpha1.MachineDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "pool"}}
	w.change(deployment, func() {
		deployment.Spec.Template.Annotations = map[string]string{"version": version}
	})
	gomega.NewWithT(w.T).Eventually(func(g gomega.Gomega) {
		g.Expect(w.seed.Client.Get(w.Context(), client.ObjectKeyFromObject(deployment), deployment)).To(gomega.Succeed())
		g.Expect(deployment.Status.ObservedGeneration).To(gomega.Equal(deployment.Generation))
		g.Expect(deployment.Status.UpdatedReplicas).To(gomega.BeNumerically(">", 0))
	}).WithTimeout(waitTimeout).Should(gomega.Succeed())
}

// wantMidRollout checks that a rolling update is not complete.
func (w *world) wantMidRollout(namespace string) {
	w.Helper()
	deployment := &v1alpha1.MachineDeployment{}
	if err := w.seed.Client.Get(w.Context(), client.ObjectKey{Namespace: namespace, Name: "pool"}, deployment); err != nil {
		w.Fatal(err)
	}
	if status := deployment.Status; status.UpdatedReplicas == status.Replicas {
		w.Errorf("the rollout was already complete: %+v", status)
	}
}

// panicking panics in the first creation of a VM.
type panicking struct {
	driver.Driver
	panics atomic.Int32
}

// CreateMachine implements driver.Driver.
func (p *panicking) CreateMachine(ctx context.Context, request *driver.CreateMachineRequest) (*driver.CreateMachineResponse, error) {
	if p.panics.Add(1) == 1 {
		panic("a bug in the driver")
	}
	return p.Driver.CreateMachine(ctx, request)
}

// TestFleet_ContainsPanics checks that a panic of the driver of one cluster restarts only the manager of that cluster.
func TestFleet_ContainsPanics(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	target := w.target(1)
	good := w.namespace("good", target, 1)
	bad := w.namespace("bad", target, 1)
	broken := &panicking{}
	w.wrap = func(namespace string, inner driver.Driver) driver.Driver {
		if namespace != bad {
			return inner
		}
		broken.Driver = inner
		return broken
	}
	w.start(w.config())
	w.awaitEvent(bad, ReasonPanicked)
	w.awaitAvailable(good, 1)
	held := w.holders(good)
	w.awaitAvailable(bad, 1)
	if got := w.holders(good); got != held {
		t.Errorf("the panic moved the leases of another namespace from %v to %v", held, got)
	}
}

// TestFleet_DividesNamespaces checks that two replicas share the namespaces, and that the second takes over those of the first
// when that exits.
func TestFleet_DividesNamespaces(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	target := w.target(1)
	var names []string
	for _, name := range []string{"a", "b", "c", "d", "e", "f"} {
		names = append(names, w.namespace(name, target, 0))
	}
	g := gomega.NewWithT(t)
	stop := w.start(w.config())
	for _, name := range names {
		w.awaitAvailable(name, 0)
	}
	before := map[string]string{}
	for _, name := range names {
		before[name] = w.holders(name)[0]
	}
	w.start(w.config())
	moved := func() int {
		count := 0
		for _, name := range names {
			if now := w.holders(name)[0]; now != "" && now != before[name] {
				count++
			}
		}
		return count
	}
	g.Eventually(moved).WithTimeout(waitTimeout).Should(gomega.And(gomega.BeNumerically(">", 0), gomega.BeNumerically("<", len(names))))
	stop()
	g.Eventually(moved).WithTimeout(waitTimeout).Should(gomega.Equal(len(names)))
}
