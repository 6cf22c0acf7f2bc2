package machinedeployment

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/machinedeployment/planner"
	"github.com/millwright-dev/millwright/test/fixture"
)

// TestAFailureToScaleIsNoRollout: one that is over stays so, and no deadline begins to run.
func TestAFailureToScaleIsNoRollout(t *testing.T) {
	s := newServer(fixture.Deployment(3, func(d *v1alpha1.MachineDeployment) { d.Spec.ProgressDeadlineSeconds = ptr.To(int32(600)) }), fixture.Set("a", 3, fixture.WithUID))
	s.Target = nil
	s.pass(t)
	s.pass(t)
	over := s.progress()
	s.change(func(d *v1alpha1.MachineDeployment) { d.Spec.Replicas = 5 })
	s.refuse = refusedSets(apierrors.NewInternalError(errors.New("etcd leader changed")))
	for range 2 {
		if result, err := s.Reconcile(t.Context(), request); !apierrors.IsInternalError(err) || result.RequeueAfter != 0 {
			t.Fatalf("got %+v and the error %v", result, err)
		}
	}
	if diff := cmp.Diff(over, s.progress()); diff != "" {
		t.Errorf("progress: want - got +\n%s", diff)
	}
	deployment := s.deployment()
	at := conditionAt(deployment.Status, v1alpha1.MachineDeploymentReplicaFailure)
	if at < 0 || deployment.Status.Conditions[at].Reason != v1alpha1.DeploymentReasonSetUpdateError || !strings.Contains(deployment.Status.Conditions[at].Message, "etcd leader changed") {
		t.Errorf("got %+v", deployment.Status.Conditions)
	}
	if deployment.Status.ObservedGeneration == deployment.Generation {
		t.Error("it is said to be done")
	}
	s.refuse = nil
	s.pass(t)
	s.pass(t)
	if diff := cmp.Diff(over, s.progress()); diff != "" || s.only(t).Spec.Replicas != 5 {
		t.Errorf("the set asks for %d; progress: want - got +\n%s", s.only(t).Spec.Replicas, diff)
	}
	if at := conditionAt(s.deployment().Status, v1alpha1.MachineDeploymentReplicaFailure); at >= 0 {
		t.Errorf("it is still said: %+v", s.deployment().Status.Conditions[at])
	}
}

// TestAFailureOfARollout is said where a rollout is watched.
func TestAFailureOfARollout(t *testing.T) {
	s := newServer(fixture.Deployment(3, fixture.OfClass("b"), fixture.Rolling("1", "1")), fixture.Set("a", 3, fixture.WithUID), fixture.Set("b", 0, fixture.WithUID, fixture.OfRevision("2")))
	s.Target = nil
	s.refuse = refusedSets(apierrors.NewInternalError(errors.New("etcd leader changed")))
	if _, err := s.Reconcile(t.Context(), request); err == nil {
		t.Fatal("no error")
	}
	if got := s.progress(); got.Reason != v1alpha1.DeploymentReasonSetUpdateError || got.Status != v1alpha1.ConditionFalse {
		t.Errorf("got %+v", got)
	}
}

// TestASetThatIsGoneIsNotSaid: the cache did not show it yet.
func TestASetThatIsGoneIsNotSaid(t *testing.T) {
	s := newServer(fixture.Deployment(3), fixture.Set("a", 3, fixture.WithUID))
	s.Target = nil
	s.pass(t)
	s.pass(t)
	before := s.deployment().Status
	s.change(func(d *v1alpha1.MachineDeployment) { d.Spec.Replicas = 5 })
	s.refuse = refusedSets(apierrors.NewNotFound(v1alpha1.SchemeGroupVersion.WithResource("machinesets").GroupResource(), "pool-a"))
	if s.pass(t).RequeueAfter == 0 {
		t.Error("it does not try again")
	}
	if diff := cmp.Diff(before, s.deployment().Status); diff != "" {
		t.Errorf("the status changed:\n%s", diff)
	}
}

// TestSetsComeInOneOrder: the cache has none, and what is said of several must not change.
func TestSetsComeInOneOrder(t *testing.T) {
	objects := []client.Object{fixture.Deployment(0)}
	var want []string
	for _, name := range []string{"a", "b", "c", "d"} {
		objects = append(objects, fixture.Set(name, 0, fixture.WithUID))
		want = append(want, "pool-"+name)
	}
	s := newServer(objects...)
	s.Client = interceptor.NewClient(s.live, interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			err := c.List(ctx, list, opts...)
			slices.Reverse(list.(*v1alpha1.MachineSetList).Items)
			return err
		},
	})
	sets, err := s.sets(t.Context(), fixture.Namespace, "uid-of-pool")
	must(err)
	var got []string
	for _, set := range sets {
		got = append(got, set.Name)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("want - got +\n%s", diff)
	}
}

// TestANodeIsReleasedWhenThePreservationOfItsMachineEnds: nothing else brings a pass then.
func TestANodeIsReleasedWhenThePreservationOfItsMachineEnds(t *testing.T) {
	set := fixture.Set("a", 1, fixture.WithUID)
	machine := fixture.Member(set, "m-0")
	fixture.PreservedUntil(fixture.Noon.Add(time.Hour))(machine)
	s := newServer(fixture.Deployment(1), set, machine)
	must(s.target.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "m-0", Annotations: map[string]string{
		v1alpha1.AnnotationKeyScaleDownDisabled: "true", v1alpha1.AnnotationKeyScaleDownDisabledByMCM: "true",
	}}}))
	now := clocktesting.NewFakePassiveClock(fixture.Noon)
	s.Clock = now
	s.pass(t)
	if got := s.pass(t).RequeueAfter; got != time.Hour {
		t.Errorf("it looks again after %s, want 1h", got)
	}
	if n := len(s.node(t, "m-0").Annotations); n != 2 {
		t.Fatalf("the node has %d annotations while its machine is preserved", n)
	}
	now.SetTime(fixture.Noon.Add(time.Hour))
	s.pass(t)
	if got := s.node(t, "m-0").Annotations; len(got) > 0 {
		t.Errorf("the node still has %v", got)
	}
	if got := s.pass(t).RequeueAfter; got != 0 {
		t.Errorf("it looks again after %s", got)
	}
}

// TestATargetThatHangsCostsItsTimeOnce, not once for old nodes and once for new ones.
func TestATargetThatHangsCostsItsTimeOnce(t *testing.T) {
	s := newServer()
	tried := 0
	s.refuse = func(verb string, _ client.Object) error {
		if verb == "patch node" {
			tried++
			return context.DeadlineExceeded
		}
		return nil
	}
	set := fixture.Set("a", 1, fixture.WithUID)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "m"}}
	shall := node.DeepCopy()
	shall.Labels = map[string]string{"a": "b"}
	patch := planner.Operation{Action: planner.PatchNodes, Nodes: []planner.NodeChange{{Old: node, New: shall}}, Reason: "a test"}
	f := planner.NewFacts(fixture.Deployment(1), sets{set}, fixture.Noon)
	o := s.current().apply(t.Context(), f, []planner.Operation{patch, patch})
	if again := lookAgain(f, o, f.Deployment.Status); o.Failure != nil || tried != 1 || again == 0 {
		t.Errorf("tried %d times, again after %s: %v", tried, again, o.Failure)
	}
}

// TestNothingIsRememberedOfWhatIsGone: of sets that were released, and of nodes of sets that were
// scaled to zero.
func TestNothingIsRememberedOfWhatIsGone(t *testing.T) {
	t.Run("set", func(t *testing.T) {
		s := newServer(fixture.Deployment(3), fixture.Set("a", 3, fixture.WithUID))
		s.Target = nil
		s.pass(t)
		s.setSet(t, "pool-a", func(set *v1alpha1.MachineSet) { set.Labels = map[string]string{"name": "other"} })
		s.pass(t)
		released := s.all()["pool-a"]
		if len(released.OwnerReferences) > 0 {
			t.Fatal("it was not released")
		}
		released.ResourceVersion = "1"
		if !s.current().memory.sets.Fresh(released) {
			t.Error("the set is remembered")
		}
	})
	t.Run("node", func(t *testing.T) {
		old := fixture.Set("a", 2, fixture.WithUID)
		objects := []client.Object{fixture.Deployment(2, fixture.Rolling("0", "2"), fixture.OfClass("b")), old}
		for i := range 2 {
			objects = append(objects, fixture.Member(old, fmt.Sprintf("m-%d", i)))
		}
		s := newServer(objects...)
		for i := range 2 {
			must(s.target.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("m-%d", i)}}))
		}
		s.pass(t)
		if n := s.all()["pool-a"].Spec.Replicas; n != 0 || nodeWrites(s) != 2 {
			t.Fatalf("the old set asks for %d, and %d nodes were written", n, nodeWrites(s))
		}
		for i := range 2 {
			node := s.node(t, fmt.Sprintf("m-%d", i))
			node.ResourceVersion = "1"
			if !s.current().memory.nodes.Fresh(node) {
				t.Errorf("node %s is remembered", node.Name)
			}
		}
	})
}

// refusedSets has every write of a set fail.
func refusedSets(failure error) func(string, client.Object) error {
	return func(verb string, object client.Object) error {
		if _, ok := object.(*v1alpha1.MachineSet); ok && verb == "patch" {
			return failure
		}
		return nil
	}
}
