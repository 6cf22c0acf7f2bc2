package unmanaged

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	testingclock "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/reconcile/fieldindex"
	"github.com/millwright-dev/millwright/internal/reconcile/target"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/fakeclient"
)

const grace = 20 * time.Minute

var begin = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

type fakeTarget struct {
	target.Interface
	client client.Client
	away   bool
}

func (t fakeTarget) Client() client.Client { return t.client }

func (t fakeTarget) Ready() bool { return !t.away }

func (t fakeTarget) Watch(client.Object, handler.EventHandler, ...predicate.Predicate) source.Source {
	return nil // the tests set up no watches
}

type indexer struct{ *fake.ClientBuilder }

func (i indexer) IndexField(_ context.Context, object client.Object, field string, values client.IndexerFunc) error {
	i.WithIndex(object, field, values)
	return nil
}

// kinds returns the scheme of all clients.
var kinds = sync.OnceValue(env.NewScheme)

// harness is a controller with a node.
type harness struct {
	*testing.T
	clock      *testingclock.FakeClock
	machines   client.Client
	nodes      client.Client
	writes     int
	controller *Controller
}

func newHarness(t *testing.T, node *corev1.Node) *harness {
	t.Helper()
	h := &harness{T: t, clock: testingclock.NewFakeClock(begin)}
	indexed := indexer{fakeclient.NewBuilder(kinds())}
	if err := fieldindex.Add(t.Context(), indexed); err != nil {
		t.Fatal(err)
	}
	h.machines = indexed.Build()
	h.nodes = fakeclient.NewBuilder(kinds()).WithObjects(node).WithInterceptorFuncs(interceptor.Funcs{
		Patch: func(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, options ...client.PatchOption) error {
			h.writes++
			return c.Patch(ctx, object, patch, options...)
		},
	}).Build()
	h.controller = New(Options{Machines: h.machines, Target: fakeTarget{client: h.nodes}, Clock: h.clock, Grace: grace})
	return h
}

func (h *harness) pass() ctrl.Result {
	h.Helper()
	result, err := h.controller.Reconcile(h.Context(), ctrl.Request{NamespacedName: client.ObjectKey{Name: "n"}})
	if err != nil {
		h.Fatal(err)
	}
	return result
}

func (h *harness) node() *corev1.Node {
	h.Helper()
	node := &corev1.Node{}
	if err := h.nodes.Get(h.Context(), client.ObjectKey{Name: "n"}, node); err != nil {
		h.Fatal(err)
	}
	return node
}

func (h *harness) machine(node string) {
	h.Helper()
	machine := &v1alpha1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: "shoot", Name: "of-" + node, Labels: map[string]string{v1alpha1.NodeLabelKey: node}}}
	if err := h.machines.Create(h.Context(), machine); err != nil {
		h.Fatal(err)
	}
}

func newNode(age time.Duration) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: "n", CreationTimestamp: metav1.NewTime(begin.Add(-age)),
		Finalizers: []string{v1alpha1.FinalizerNode, "example.com/theirs"}, Annotations: map[string]string{"a": "b"},
	}}
}

// TestNode_IsMarkedAfterGracePeriod checks that a node is marked after the grace period, which begins with the process or the
// node, and not before.
func TestNode_IsMarkedAfterGracePeriod(t *testing.T) {
	for name, tc := range map[string]struct {
		age time.Duration
		due time.Duration // after the start of the process
	}{
		"old node": {24 * time.Hour, grace},
		"new node": {-time.Minute, grace + time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, newNode(tc.age))
			h.machine("another-node")
			if got := h.pass().RequeueAfter; got != tc.due {
				t.Errorf("the next pass is due in %v, want %v", got, tc.due)
			}
			h.clock.Step(tc.due - time.Second)
			h.pass()
			if h.writes != 0 {
				t.Fatal("the node was marked before the grace period expired")
			}
			h.clock.Step(time.Second)
			h.pass()
			got := h.node()
			if diff := cmp.Diff(map[string]string{"a": "b", v1alpha1.AnnotationKeyNotManaged: "1"}, got.Annotations); diff != "" {
				t.Errorf("annotations (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff([]string{"example.com/theirs"}, got.Finalizers); diff != "" {
				t.Errorf("finalizers (-want +got):\n%s", diff)
			}
			h.clock.Step(time.Hour)
			h.pass()
			if h.writes != 1 {
				t.Errorf("%d writes, want 1", h.writes)
			}
			h.machine("n")
			h.pass()
			if diff := cmp.Diff(map[string]string{"a": "b"}, h.node().Annotations); diff != "" {
				t.Errorf("annotations after the node has a Machine again (-want +got):\n%s", diff)
			}
		})
	}
}

// TestNode_WithMachineIsNotMarked checks that a node with a Machine is not changed, even if it is old.
func TestNode_WithMachineIsNotMarked(t *testing.T) {
	h := newHarness(t, newNode(24*time.Hour))
	h.machine("n")
	h.pass()
	h.clock.Step(24 * time.Hour)
	if got := h.pass(); h.writes != 0 || got.RequeueAfter != 0 {
		t.Errorf("%d writes, next pass in %v", h.writes, got.RequeueAfter)
	}
}

// TestNode_WrongMarkIsRemoved checks that wrong marks are removed: a mark with another value, and a mark before the grace
// period has expired.
func TestNode_WrongMarkIsRemoved(t *testing.T) {
	node := newNode(0)
	node.Annotations[v1alpha1.AnnotationKeyNotManaged] = "yes"
	h := newHarness(t, node)
	h.machine("n")
	h.pass()
	if _, marked := h.node().Annotations[v1alpha1.AnnotationKeyNotManaged]; marked {
		t.Error("it stays")
	}
}

// TestNode_IsGone checks a node that was deleted between the event and the pass.
func TestNode_IsGone(t *testing.T) {
	h := newHarness(t, newNode(0))
	if _, err := h.controller.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKey{Name: "gone"}}); err != nil {
		t.Error(err)
	}
}

// TestReconcile_SkipsUnavailableTarget checks a pass before the target cluster is available, which an event of a Machine triggers. It
// must not read the node, since that would block the worker, and must not fail.
func TestReconcile_SkipsUnavailableTarget(t *testing.T) {
	h := newHarness(t, newNode(24*time.Hour))
	h.controller.Target = fakeTarget{away: true} // a read would use a nil client
	h.pass()
	h.clock.Step(grace)
	if got := h.pass(); got.RequeueAfter != 0 {
		t.Errorf("the next pass is due in %v", got.RequeueAfter)
	}
	h.controller.Target = fakeTarget{client: h.nodes}
	h.pass()
	if _, marked := h.node().Annotations[v1alpha1.AnnotationKeyNotManaged]; !marked {
		t.Error("the node was not marked after the target cluster became available")
	}
}

// TestReconcile_RetriesFailedWrite checks that a failed write is retried.
func TestReconcile_RetriesFailedWrite(t *testing.T) {
	down := errors.New("down")
	h := newHarness(t, newNode(0))
	broken := interceptor.NewClient(h.nodes.(client.WithWatch), interceptor.Funcs{
		Patch: func(context.Context, client.WithWatch, client.Object, client.Patch, ...client.PatchOption) error {
			return down
		},
	})
	h.controller.Target = fakeTarget{client: broken}
	h.pass()
	h.clock.Step(grace)
	if _, err := h.controller.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKey{Name: "n"}}); !errors.Is(err, down) {
		t.Errorf("err %v", err)
	}
}

// TestPredicates_IgnoreHeartbeats checks that heartbeats trigger no passes.
func TestPredicates_IgnoreHeartbeats(t *testing.T) {
	was, beat, marked, held := newNode(0), newNode(0), newNode(0), newNode(0)
	beat.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady}}
	marked.Annotations = map[string]string{v1alpha1.AnnotationKeyNotManaged: "1"}
	held.Finalizers = nil
	for name, tc := range map[string]struct {
		is   *corev1.Node
		want bool
	}{"heartbeat": {beat, false}, "mark": {marked, true}, "finalizer": {held, true}} {
		if got := markChanges().Update(event.UpdateEvent{ObjectOld: was, ObjectNew: tc.is}); got != tc.want {
			t.Errorf("%s: passes = %v", name, got)
		}
	}
	machine := &v1alpha1.Machine{}
	linked := machine.DeepCopy()
	linked.Labels = map[string]string{v1alpha1.NodeLabelKey: "n"}
	if !linkChanges().Update(event.UpdateEvent{ObjectOld: machine, ObjectNew: linked}) || linkChanges().Update(event.UpdateEvent{ObjectOld: linked, ObjectNew: linked.DeepCopy()}) {
		t.Error("only a change of the node label must pass")
	}
	if got := nodeOf(t.Context(), linked); len(got) != 1 || got[0].Name != "n" || len(nodeOf(t.Context(), machine)) != 0 {
		t.Errorf("a Machine triggers passes over %v", got)
	}
}
