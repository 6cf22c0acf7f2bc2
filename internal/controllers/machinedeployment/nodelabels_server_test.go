package machinedeployment

import (
	"fmt"
	"testing"
	"time"

	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

// joined is a target cluster that is available.
type joined struct{ cluster.Cluster }

func (j joined) Client() client.Client { return j.GetClient() }
func (j joined) Ready() bool           { return true }
func (j joined) Watch(object client.Object, events handler.EventHandler, filters ...predicate.Predicate) source.Source {
	return source.Kind(j.GetCache(), object, events, filters...)
}

// runInPlace runs the controller with a cluster that is also the target cluster.
func runInPlace(t *testing.T, e *env.Env) {
	t.Helper()
	e.RunControllers(t, func(mgr ctrl.Manager, events record.EventRecorder) error {
		target, err := cluster.New(e.Admin, func(o *cluster.Options) { o.Scheme = env.NewScheme() })
		if err != nil {
			return err
		}
		if err := mgr.Add(target); err != nil {
			return err
		}
		return New(Options{
			Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Events: events, Clock: clock.RealClock{}, Concurrency: 2,
			Target: joined{target}, InPlace: true,
		}).SetupWithManager(mgr)
	})
}

// TestInPlaceUpdate_LabelsTriggerPassOnServer checks that a deployment reports a wrong label of a node as soon as a user sets it,
// until it is removed.
func TestInPlaceUpdate_LabelsTriggerPassOnServer(t *testing.T) {
	e := env.New(t)
	g := gomega.NewWithT(t)
	deployment := env.Fresh(e, fixture.Deployment(2, fixture.InPlace("0", "1")))
	g.Expect(e.Client.Create(t.Context(), deployment)).To(gomega.Succeed())
	runInPlace(t, e)
	patch := func(object client.Object, body string) {
		t.Helper()
		g.Expect(e.Client.Patch(t.Context(), object, client.RawPatch("application/merge-patch+json", []byte(body)))).To(gomega.Succeed())
	}
	wantReason := func(reason string) {
		t.Helper()
		g.Eventually(func(g gomega.Gomega) {
			setsDo(t, g, e)
			g.Expect(e.Client.Get(t.Context(), client.ObjectKeyFromObject(deployment), deployment)).To(gomega.Succeed())
			g.Expect(progressOf(deployment.Status).Reason).To(gomega.Equal(reason))
		}, eventually).Should(gomega.Succeed())
	}
	var set *v1alpha1.MachineSet
	g.Eventually(func() *v1alpha1.MachineSet { set = setsDo(t, g, e)["a"]; return set }, eventually).ShouldNot(gomega.BeNil())
	node := membersOf(t, e, set)
	wantReason(v1alpha1.DeploymentReasonComplete)
	patch(deployment, `{"spec":{"template":{"spec":{"class":{"name":"b"}}}}}`)
	g.Eventually(func(g gomega.Gomega) {
		setsDo(t, g, e)
		g.Expect(e.Client.Get(t.Context(), client.ObjectKeyFromObject(node), node)).To(gomega.Succeed())
		g.Expect(node.Labels).To(gomega.HaveKey(v1alpha1.LabelKeyNodeCandidateForUpdate))
	}, eventually).Should(gomega.Succeed())
	wantReason(v1alpha1.DeploymentReasonUpdated)
	for range 2 {
		patch(node, `{"metadata":{"labels":{"`+v1alpha1.LabelKeyNodeUpdateResult+`":"perhaps"}}}`)
		wantReason(v1alpha1.DeploymentReasonUpdateBlocked)
		patch(node, `{"metadata":{"labels":{"`+v1alpha1.LabelKeyNodeUpdateResult+`":null}}}`)
		wantReason(v1alpha1.DeploymentReasonUpdated)
	}
}

// TestInPlaceUpdate_WaitsForCurrentCache checks that a pass is scheduled while the cache lacks Machines, since
// their events trigger no pass.
func TestInPlaceUpdate_WaitsForCurrentCache(t *testing.T) {
	s := inPlaceServer(t)
	machine := &v1alpha1.Machine{}
	must(s.live.Get(t.Context(), client.ObjectKey{Namespace: fixture.Namespace, Name: "pool-a-0"}, machine))
	must(s.live.Delete(t.Context(), machine))
	if after := s.pass(t).RequeueAfter; after == 0 || after > time.Second {
		t.Errorf("the next pass is due in %v while the cache lacks a Machine", after)
	}
}

// membersOf creates two Running Machines of a set, and returns the node of one.
func membersOf(t *testing.T, e *env.Env, set *v1alpha1.MachineSet) (node *corev1.Node) {
	t.Helper()
	for i := range 2 {
		machine := env.Fresh(e, fixture.Member(set, fmt.Sprintf("%s-%d", e.Namespace, i)))
		node = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: machine.Name}}
		must(e.Client.Create(t.Context(), node))
		status := machine.Status
		must(e.Client.Create(t.Context(), machine))
		machine.Status = status
		must(e.Client.Status().Update(t.Context(), machine))
	}
	return node
}
