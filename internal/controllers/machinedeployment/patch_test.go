package machinedeployment

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/machinedeployment/planner"
	"github.com/millwright-dev/millwright/test/fixture"
)

// TestOnlyTaintsAreLocked: they replace their list, and would take away what somebody else has
// put in meanwhile. All else is written though the kubelet has written, as it does all the time.
func TestOnlyTaintsAreLocked(t *testing.T) {
	theirs := corev1.Taint{Key: "theirs", Effect: corev1.TaintEffectNoExecute}
	for change, test := range map[string]struct {
		change   func(*corev1.Node)
		conflict bool
	}{
		"an annotation": {func(node *corev1.Node) {
			metav1.SetMetaDataAnnotation(&node.ObjectMeta, v1alpha1.AnnotationKeyScaleDownDisabled, "true")
		}, false},
		"a taint": {tainting, true},
	} {
		t.Run(change, func(t *testing.T) {
			s := newServer(fixture.Deployment(1))
			must(s.target.Create(t.Context(), nodeNamed("n")))
			shown := s.node(t, "n")
			s.setNode(t, "n", func(node *corev1.Node) { node.Spec.Taints = []corev1.Taint{theirs} })
			shall := shown.DeepCopy()
			test.change(shall)
			err := s.current().patchNode(t.Context(), planner.NodeChange{Old: shown, New: shall})
			if apierrors.IsConflict(err) != test.conflict || err != nil && !test.conflict {
				t.Errorf("got the error %v", err)
			}
			node := s.node(t, "n")
			if diff := cmp.Diff([]corev1.Taint{theirs}, node.Spec.Taints); diff != "" {
				t.Errorf("taints: want - got +\n%s", diff)
			}
			if written := len(node.Annotations) > 0; written == test.conflict {
				t.Errorf("annotations %v", node.Annotations)
			}
		})
	}
}

// TestATaintOfAnotherEffectIsNotOurs, whatever its key is.
func TestATaintOfAnotherEffectIsNotOurs(t *testing.T) {
	users := corev1.Taint{Key: v1alpha1.TaintKeyPreferNoSchedule, Effect: corev1.TaintEffectNoSchedule}
	s := rollout(t, 1, 1)
	for _, name := range []string{"pool-a-0", "pool-b-0"} {
		s.setNode(t, name, func(node *corev1.Node) { node.Spec.Taints = []corev1.Taint{users} })
	}
	s.pass(t)
	for name, want := range map[string]string{"pool-a-0": users.ToString() + " " + tainted + " " + protected, "pool-b-0": users.ToString() + " " + protected} {
		if got := s.marksOf(t, name); got != want {
			t.Errorf("%s bears %q, want %q", name, got, want)
		}
	}
}

// TestNodesArePatchedSomeAtATime: all of them, but never more at the same time than is bearable.
func TestNodesArePatchedSomeAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const all = 5*manyNodes + 3
		s := newServer(fixture.Deployment(1))
		var done, underWay atomic.Int32
		answer := make(chan struct{})
		s.target = interceptor.NewClient(s.target, interceptor.Funcs{
			Patch: func(context.Context, client.WithWatch, client.Object, client.Patch, ...client.PatchOption) error {
				underWay.Add(1)
				<-answer
				underWay.Add(-1)
				done.Add(1)
				return nil
			},
		})
		var op planner.Operation
		for i := range all {
			is := nodeNamed(fmt.Sprintf("n-%d", i))
			shall := is.DeepCopy()
			tainting(shall)
			op.Nodes = append(op.Nodes, planner.NodeChange{Old: is, New: shall})
		}
		ended := make(chan error, 1)
		go func() { ended <- s.current().patchNodes(t.Context(), fixture.Deployment(1), op) }()
		for left := all; left > 0; left-- {
			synctest.Wait() // until whatever can go on waits for an answer
			if got, want := int(underWay.Load()), min(left, manyNodes); got != want {
				t.Fatalf("%d are to be written, and %d are under way, want %d", left, got, want)
			}
			answer <- struct{}{}
		}
		if err := <-ended; err != nil || done.Load() != all {
			t.Errorf("%d are written, and the error is %v", done.Load(), err)
		}
	})
}

func nodeNamed(name string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

// tainting is what a rollout does to a node.
func tainting(node *corev1.Node) {
	node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: v1alpha1.TaintKeyPreferNoSchedule, Value: isTrue, Effect: corev1.TaintEffectPreferNoSchedule})
}
