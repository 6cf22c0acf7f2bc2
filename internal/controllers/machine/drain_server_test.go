package machine

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/bootstrap"
	"github.com/millwright-dev/millwright/internal/lifecycle/drain"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
	"github.com/millwright-dev/millwright/internal/lifecycle/timeouts"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
	"github.com/millwright-dev/millwright/internal/reconcile/target"
	"github.com/millwright-dev/millwright/internal/reconcile/tasks"
	"github.com/millwright-dev/millwright/test/support/env"
)

// liveTarget is a target cluster that is always available.
type liveTarget struct {
	cluster.Cluster
	since time.Time
}

func (t liveTarget) Client() client.Client { return t.GetClient() }

func (t liveTarget) Ready() bool { return true }

func (t liveTarget) ReadySince() time.Time { return t.since }

func (t liveTarget) Watch(object client.Object, events handler.EventHandler, filters ...predicate.Predicate) source.Source {
	return source.Kind(t.GetCache(), object, events, filters...)
}

// live runs the controller with a real Drainer against a real API server, with the roles that the project ships.
func live(t *testing.T) (*env.Env, *Controller) {
	t.Helper()
	e := env.New(t)
	access := e.UserWith(t, "config/rbac/target-role.yaml")
	nodes, err := cluster.New(access, func(o *cluster.Options) {
		o.Scheme = scheme
		o.Cache.ByObject = map[client.Object]cache.ByObject{&corev1.Pod{}: {Transform: drain.StripPod}}
		o.Client.Cache = &client.CacheOptions{DisableFor: []client.Object{&corev1.Secret{}}}
	})
	if err != nil {
		t.Fatal(err)
	}
	clients, err := kubernetes.NewForConfig(access)
	if err != nil {
		t.Fatal(err)
	}
	for name, values := range target.Indexes {
		if err := nodes.GetFieldIndexer().IndexField(t.Context(), &corev1.Node{}, name, values); err != nil {
			t.Fatal(err)
		}
	}
	vms := newDriver()
	vms.Add(vmOf(e.Namespace, machineName, "sim:///"+machineName))
	var machines *Controller
	e.RunControllers(t, func(mgr ctrl.Manager, events record.EventRecorder) error {
		runner, waker := tasks.New(4), &tasks.Waker{}
		machines = New(Options{
			Client: mgr.GetClient(), Target: liveTarget{nodes, time.Now()},
			Tokens:          &bootstrap.Tokens{Target: nodes.GetClient(), Installation: e.Namespace, Clock: clock.RealClock{}},
			TaskCompletions: waker, Events: events, Clock: clock.RealClock{}, Concurrency: 2,
			Engine: instance.New(vms, instance.Options{Run: runner.Go, Wake: waker.Wake}),
			Drain: Drain{Drainer: drain.New(drain.Options{
				Client: nodes.GetClient(), Evictor: drain.NewEvictor(clients.CoreV1().RESTClient()), Run: runner.Go, Wake: waker.Wake, Clock: clock.RealClock{},
				Identify: func(context.Context, types.NamespacedName, *corev1.PersistentVolume) (string, bool, error) {
					return "", false, nil
				},
			})},
		})
		return errors.Join(drain.AddIndexes(t.Context(), nodes.GetFieldIndexer()), mgr.Add(nodes), mgr.Add(runner), machines.SetupWithManager(mgr))
	})
	return e, machines
}

// TestMachine_DrainFollowsEventsOnServer checks that Pods are evicted when a Machine is deleted, that the status reports what
// delays the drain, and that forcing the drain takes effect immediately. Events must cause all of this, since the
// timers of a drain are too long for this test.
func TestMachine_DrainFollowsEventsOnServer(t *testing.T) {
	e, controller := live(t)
	g := gomega.NewWithT(t)
	must := func(err error) {
		t.Helper()
		g.Expect(err).NotTo(gomega.HaveOccurred())
	}
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "node-" + e.Namespace + "-" + machineName},
		Spec:       corev1.NodeSpec{ProviderID: "sim:///" + machineName}, // otherwise the node could count as older than the Machine
	}
	must(e.Client.Create(t.Context(), node))
	t.Cleanup(func() { _ = e.Client.Delete(context.Background(), node) }) // already deleted if the test succeeds
	node.Status.Conditions = []corev1.NodeCondition{ready}
	must(e.Client.Status().Update(t.Context(), node))
	for _, name := range []string{"web", "db"} {
		must(e.Client.Create(t.Context(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: e.Namespace, Name: name, Labels: map[string]string{"app": name}},
			Spec:       corev1.PodSpec{NodeName: node.Name, Containers: []corev1.Container{{Name: "c", Image: "none"}}},
		}))
	}
	must(e.Client.Create(t.Context(), &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: e.Namespace, Name: "db"},
		Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}}, MinAvailable: &intstr.IntOrString{IntVal: 1}},
	}))
	must(e.Client.Create(t.Context(), newSecret(e.Namespace)))
	must(e.Client.Create(t.Context(), newClass(e.Namespace)))
	machine := newMachine(e.Namespace, time.Now())
	restored(machine)
	must(e.Client.Create(t.Context(), machine))
	soon := func(what string, check func(g gomega.Gomega)) {
		t.Helper()
		g.Eventually(check).WithTimeout(env.WaitTimeout).WithPolling(50*time.Millisecond).Should(gomega.Succeed(), what)
	}
	get := func(g gomega.Gomega, object client.Object) {
		g.Expect(e.Client.Get(t.Context(), client.ObjectKeyFromObject(object), object)).To(gomega.Succeed())
	}
	soon("Running", func(g gomega.Gomega) {
		get(g, machine)
		g.Expect(machine.Status.CurrentStatus.Phase).To(gomega.Equal(v1alpha1.MachineRunning))
	})
	// The shipped roles must suffice to check whether the API servers respond, and to read the node. Both requests
	// bypass the cache.
	if !controller.outages.Countdown(t.Context(), time.Time{}, timeouts.Timeout{}).Over() { // timeouts expire only while they respond
		t.Error("the API servers are considered unavailable")
	}
	if usable, err := controller.nodes.usable(t.Context(), controller.newScope(machine, &memory{})); err != nil || !usable {
		t.Errorf("usable = %v, err %v for the node of a Running machine", usable, err)
	}

	must(e.Client.Delete(t.Context(), machine))
	web := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: e.Namespace, Name: "web"}}
	soon("the pod is evicted", func(g gomega.Gomega) {
		get(g, web)
		g.Expect(web.DeletionTimestamp).NotTo(gomega.BeNil())
	})
	must(e.Client.Delete(t.Context(), web, client.GracePeriodSeconds(0))) // like its kubelet
	soon("the status reports what delays the drain", func(g gomega.Gomega) {
		get(g, machine)
		g.Expect(machine.Status.LastOperation.Description).To(gomega.SatisfyAll(
			gomega.ContainSubstring(e.Namespace+"/db"), gomega.Not(gomega.ContainSubstring("/web")), gomega.HaveSuffix(messages.Drain)))
	})
	get(g, node)
	g.Expect(node.Spec.Unschedulable).To(gomega.BeTrue())
	g.Expect(terminationCondition(node)).NotTo(gomega.BeNil())

	patch := client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"metadata":{"labels":{%q:"True"}}}`, v1alpha1.LabelKeyForceDeletion))
	must(e.Client.Patch(t.Context(), machine, patch))
	begin := time.Now()
	for _, object := range []client.Object{machine, node, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: e.Namespace, Name: "db"}}} {
		soon(object.GetName()+" is gone", func(g gomega.Gomega) {
			err := e.Client.Get(t.Context(), client.ObjectKeyFromObject(object), object)
			g.Expect(client.IgnoreNotFound(err)).To(gomega.Succeed())
			g.Expect(err).To(gomega.HaveOccurred())
		})
	}
	t.Logf("everything was deleted %v after the drain was forced", time.Since(begin))
}
