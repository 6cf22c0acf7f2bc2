package machinedeployment

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/rollout"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

// duringRollout returns a server with an old set a and a current set b. Each of their machines has a node.
func duringRollout(t *testing.T, a, b int32, changes ...change) *server {
	t.Helper()
	old, current := fixture.Set("a", a, fixture.WithUID), fixture.Set("b", b, fixture.WithUID)
	objects := []client.Object{fixture.Deployment(2, append([]change{fixture.Rolling("1", "0"), fixture.OfClass("b")}, changes...)...), old, current}
	var names []string
	for set, count := range map[*v1alpha1.MachineSet]int32{old: a, current: b} {
		for i := range count {
			names = append(names, fmt.Sprintf("%s-%d", set.Name, i))
			objects = append(objects, fixture.Member(set, names[len(names)-1]))
		}
	}
	s := newServer(objects...)
	for _, name := range names {
		must(s.target.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}))
	}
	return s
}

func (s *server) node(t *testing.T, name string) *corev1.Node {
	t.Helper()
	node := &corev1.Node{}
	must(s.target.Get(t.Context(), client.ObjectKey{Name: name}, node))
	return node
}

func (s *server) setNode(t *testing.T, name string, change func(*corev1.Node)) {
	t.Helper()
	node := s.node(t, name)
	change(node)
	must(s.target.Update(t.Context(), node))
}

func (s *server) setSet(t *testing.T, name string, change func(*v1alpha1.MachineSet)) {
	t.Helper()
	set := s.all()[name]
	status := set.DeepCopy()
	change(set)
	change(status)
	must(s.live.Update(t.Context(), set))
	status.ResourceVersion = set.ResourceVersion
	status.Spec = set.Spec
	must(s.live.Status().Update(t.Context(), status))
}

// marksOf returns a short description of the marks of a node.
func (s *server) marksOf(t *testing.T, name string) string {
	t.Helper()
	node := s.node(t, name)
	var marks []string
	for _, taint := range node.Spec.Taints {
		marks = append(marks, taint.ToString())
	}
	for _, key := range []string{v1alpha1.AnnotationKeyScaleDownDisabled, v1alpha1.AnnotationKeyScaleDownDisabledByMCM} {
		if value, ok := node.Annotations[key]; ok {
			marks = append(marks, strings.TrimPrefix(key, "cluster-autoscaler.kubernetes.io/")+"="+value)
		}
	}
	return strings.Join(marks, " ")
}

func nodeWrites(s *server) int {
	n := 0
	for _, write := range s.writes {
		if strings.HasPrefix(write, "patch node ") {
			n++
		}
	}
	return n
}

// finish removes the machines of the old set and makes all machines of the current set available.
func finish(t *testing.T, s *server) {
	t.Helper()
	must(s.live.DeleteAllOf(t.Context(), &v1alpha1.Machine{}, client.InNamespace(fixture.Namespace)))
	s.setSet(t, "pool-a", func(set *v1alpha1.MachineSet) { set.Spec.Replicas = 0; fixture.Reports(0, 0)(set) })
	s.setSet(t, "pool-b", func(set *v1alpha1.MachineSet) { set.Spec.Replicas = 2; fixture.Reports(2, 2)(set) })
	for _, name := range []string{"pool-b-0", "pool-b-1"} {
		machine := fixture.Member(s.all()["pool-b"], name)
		must(s.live.Create(t.Context(), machine))
		_ = client.IgnoreAlreadyExists(s.target.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}))
	}
}

// TestNodes_AreMarkedAndUnmarkedOnce also checks the number of writes: one for an old node, two for a new node.
func TestNodes_AreMarkedAndUnmarkedOnce(t *testing.T) {
	s := duringRollout(t, 2, 1)
	for range 3 {
		s.pass(t)
	}
	for name, want := range map[string]string{"pool-a-0": tainted + " " + protected, "pool-a-1": tainted + " " + protected, "pool-b-0": protected} {
		if got := s.marksOf(t, name); got != want {
			t.Errorf("%s has the marks %q, want %q", name, got, want)
		}
	}
	if n := nodeWrites(s); n != 3 {
		t.Errorf("%d writes to 3 nodes", n)
	}
	if s.all()["pool-a"].Annotations[v1alpha1.AnnotationKeyPreferNoSchedule] != "True" {
		t.Error("the set is not annotated as tainted")
	}
	at := slices.IndexFunc(s.writes, func(w string) bool { return w == "patch pool-a" })
	if taint := slices.Index(s.writes, "patch node pool-a-0"); at >= 0 && taint > at {
		t.Errorf("the set was scaled before its nodes were tainted: %q", s.writes)
	}

	finish(t, s)
	s.writes = nil
	for range 3 {
		s.pass(t)
	}
	if got := s.marksOf(t, "pool-b-0"); got != "" || nodeWrites(s) != 1 {
		t.Errorf("marks %q after the rollout, writes %q", got, s.writes)
	}
	marked := 0
	for _, line := range s.lines {
		if strings.HasPrefix(line, "NodesMarked: ") || strings.HasPrefix(line, "NodesUnmarked: ") {
			marked++
		}
	}
	if marked != 2 {
		t.Errorf("events %q, want one at the beginning and one at the end", s.lines)
	}
}

func TestNodes_UserAnnotationsAreKept(t *testing.T) {
	users := func(node *corev1.Node) {
		metav1.SetMetaDataAnnotation(&node.ObjectMeta, v1alpha1.AnnotationKeyScaleDownDisabled, "true")
	}
	s := duringRollout(t, 1, 2)
	s.setNode(t, "pool-b-0", users)
	s.pass(t)
	finish(t, s)
	s.pass(t)
	if got, want := s.marksOf(t, "pool-b-0"), "scale-down-disabled=true"; got != want {
		t.Errorf("marks %q, want %q", got, want)
	}
	if got := s.marksOf(t, "pool-b-1"); got != "" {
		t.Errorf("marks of the other node: %q", got)
	}
}

func TestNodes_WithoutProtection(t *testing.T) {
	s := duringRollout(t, 2, 1)
	s.ProtectNodes = false
	s.pass(t)
	if got := s.marksOf(t, "pool-a-0") + s.marksOf(t, "pool-b-0"); got != tainted {
		t.Errorf("got %q", got)
	}
}

// TestNodes_RollbackMovesTaint checks that after a rollback, the nodes of the current set lose the taint
// immediately, and those of the other set get it.
func TestNodes_RollbackMovesTaint(t *testing.T) {
	s := duringRollout(t, 2, 1)
	s.pass(t)
	s.change(fixture.OfClass("a"))
	s.pass(t)
	if got := s.marksOf(t, "pool-a-0"); got != protected {
		t.Errorf("marks of the current set's node: %q", got)
	}
	if got := s.marksOf(t, "pool-b-0"); got != tainted+" "+protected {
		t.Errorf("marks of the other set's node: %q", got)
	}
	all := s.all()
	if _, ok := all["pool-a"].Annotations[v1alpha1.AnnotationKeyPreferNoSchedule]; ok {
		t.Error("the current set is still annotated as tainted")
	}
	if got := all["pool-a"].Annotations; got[v1alpha1.AnnotationKeyRevision] != "3" || got[v1alpha1.AnnotationKeyRevisionHistory] != "1" {
		t.Errorf("revision %q, history %q", got[v1alpha1.AnnotationKeyRevision], got[v1alpha1.AnnotationKeyRevisionHistory])
	}
}

// TestNodes_FailedMarksDoNotBlockRollout checks that a rollout continues if the target cluster is unavailable or
// refuses writes.
func TestNodes_FailedMarksDoNotBlockRollout(t *testing.T) {
	for reason, prepare := range map[string]func(*server){
		"away": func(s *server) { s.away = true },
		"refuses": func(s *server) {
			s.refuse = func(verb string, _ client.Object) error {
				if verb == "patch node" {
					return errors.New("no")
				}
				return nil
			}
		},
	} {
		t.Run(reason, func(t *testing.T) {
			s := duringRollout(t, 2, 1)
			prepare(s)
			if result := s.pass(t); result.RequeueAfter == 0 {
				t.Error("no retry is scheduled")
			}
			if got := s.all()["pool-a"].Spec.Replicas; got != 1 {
				t.Errorf("the old set has %d replicas, want 1", got)
			}
			s.away, s.refuse = false, nil
			s.pass(t)
			if got := s.marksOf(t, "pool-a-0"); got != tainted+" "+protected {
				t.Errorf("marks %q afterwards", got)
			}
		})
	}
}

func TestNodes_NoMarks(t *testing.T) {
	for reason, change := range map[string]change{"paused": fixture.Paused, "recreate": fixture.Recreate} {
		t.Run(reason, func(t *testing.T) {
			s := duringRollout(t, 2, 1, change)
			s.pass(t)
			if n := nodeWrites(s); n != 0 {
				t.Errorf("%d writes to nodes", n)
			}
		})
	}
	s := duringRollout(t, 2, 1)
	s.Target = nil
	s.pass(t)
	if diff := cmp.Diff("", s.marksOf(t, "pool-a-0")); diff != "" {
		t.Error("nodes were marked without a target cluster")
	}
}

// TestNodes_JoiningNodeIsNotMarked checks that a joining node is not changed, since the machine controller
// writes its taints and would meet a conflict.
func TestNodes_JoiningNodeIsNotMarked(t *testing.T) {
	s := duringRollout(t, 1, 1)
	machine := &v1alpha1.Machine{}
	must(s.live.Get(t.Context(), client.ObjectKey{Namespace: fixture.Namespace, Name: "pool-b-0"}, machine))
	machine.Status.CurrentStatus.Phase = v1alpha1.MachinePending
	must(s.live.Update(t.Context(), machine))
	s.pass(t)
	if got := s.marksOf(t, "pool-b-0"); got != "" {
		t.Errorf("marks of a joining node: %q", got)
	}
	s.setNode(t, "pool-b-0", func(node *corev1.Node) { node.Finalizers = []string{v1alpha1.FinalizerNode} })
	s.pass(t)
	if got := s.marksOf(t, "pool-b-0"); got != protected {
		t.Errorf("marks of a joined node: %q", got)
	}
}

const (
	tainted   = "deployment.machine.sapcloud.io/prefer-no-schedule=True:PreferNoSchedule"
	protected = "scale-down-disabled=true scale-down-disabled-by-mcm=true"
)

// TestNodes_AreReleasedAfterPreservation checks that a pass is scheduled for that time, since no
// event occurs.
func TestNodes_AreReleasedAfterPreservation(t *testing.T) {
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
		t.Errorf("the next pass is due in %s, want 1h", got)
	}
	if n := len(s.node(t, "m-0").Annotations); n != 2 {
		t.Fatalf("%d annotations while the machine is preserved", n)
	}
	now.SetTime(fixture.Noon.Add(time.Hour))
	s.pass(t)
	if got := s.node(t, "m-0").Annotations; len(got) > 0 {
		t.Errorf("annotations %v, want none", got)
	}
	if got := s.pass(t).RequeueAfter; got != 0 {
		t.Errorf("the next pass is due in %s", got)
	}
}

// TestNodes_HangingTargetDelaysPassOnce checks that a pass waits only once for a target cluster that does not
// respond.
func TestNodes_HangingTargetDelaysPassOnce(t *testing.T) {
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
	patch := rollout.Operation{Action: rollout.PatchNodes, Nodes: []rollout.NodeChange{{Old: node, New: shall}}, Reason: "a test"}
	r := rollout.New(rollout.NewFacts(fixture.Deployment(1), sets{set}, fixture.Noon))
	o := s.current().apply(t.Context(), r, []rollout.Operation{patch, patch})
	if after := nextPass(r, o, r.Deployment.Status); o.Failure != nil || tried != 1 || after == 0 {
		t.Errorf("%d attempts, next pass in %s: %v", tried, after, o.Failure)
	}
}

// TestMemory_DiscardsRemovedObjects checks that the state of released sets, and of nodes of sets without
// replicas, is discarded.
func TestMemory_DiscardsRemovedObjects(t *testing.T) {
	t.Run("set", func(t *testing.T) {
		s := newServer(fixture.Deployment(3), fixture.Set("a", 3, fixture.WithUID))
		s.Target = nil
		s.pass(t)
		s.setSet(t, "pool-a", func(set *v1alpha1.MachineSet) { set.Labels = map[string]string{"name": "other"} })
		s.pass(t)
		released := s.all()["pool-a"]
		if len(released.OwnerReferences) > 0 {
			t.Fatal("the set was not released")
		}
		released.ResourceVersion = "1"
		if !s.current().memory.sets.Fresh(released) {
			t.Error("the state of the set was not discarded")
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
			t.Fatalf("the old set has %d replicas, %d nodes were written", n, nodeWrites(s))
		}
		for i := range 2 {
			node := s.node(t, fmt.Sprintf("m-%d", i))
			node.ResourceVersion = "1"
			if !s.current().memory.nodes.Fresh(node) {
				t.Errorf("the state of node %s was not discarded", node.Name)
			}
		}
	})
}

// refusedSets makes every write of a set fail.
func refusedSets(failure error) func(string, client.Object) error {
	return func(verb string, object client.Object) error {
		if _, ok := object.(*v1alpha1.MachineSet); ok && verb == "patch" {
			return failure
		}
		return nil
	}
}

// TestNodePatch_LocksOnlyTaints checks that only writes of taints have an optimistic lock, since they replace the list
// and would remove concurrent changes. Other writes must succeed despite the frequent writes of the kubelet.
func TestNodePatch_LocksOnlyTaints(t *testing.T) {
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
			err := s.current().patchNode(t.Context(), rollout.NodeChange{Old: shown, New: shall})
			if apierrors.IsConflict(err) != test.conflict || err != nil && !test.conflict {
				t.Errorf("error %v", err)
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

// TestNodes_TaintWithOtherEffectIsKept checks that a taint with our key but another effect is kept.
func TestNodes_TaintWithOtherEffectIsKept(t *testing.T) {
	users := corev1.Taint{Key: v1alpha1.TaintKeyPreferNoSchedule, Effect: corev1.TaintEffectNoSchedule}
	s := duringRollout(t, 1, 1)
	for _, name := range []string{"pool-a-0", "pool-b-0"} {
		s.setNode(t, name, func(node *corev1.Node) { node.Spec.Taints = []corev1.Taint{users} })
	}
	s.pass(t)
	for name, want := range map[string]string{"pool-a-0": users.ToString() + " " + tainted + " " + protected, "pool-b-0": users.ToString() + " " + protected} {
		if got := s.marksOf(t, name); got != want {
			t.Errorf("%s has the marks %q, want %q", name, got, want)
		}
	}
}

// TestNodes_ConcurrentPatchesAreLimited checks that all nodes are patched with a limited number of concurrent requests.
func TestNodes_ConcurrentPatchesAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const all = 5*maxNodePatches + 3
		s := newServer(fixture.Deployment(1))
		var done, underWay atomic.Int32
		respond := make(chan struct{})
		s.target = interceptor.NewClient(s.target, interceptor.Funcs{
			Patch: func(context.Context, client.WithWatch, client.Object, client.Patch, ...client.PatchOption) error {
				underWay.Add(1)
				<-respond
				underWay.Add(-1)
				done.Add(1)
				return nil
			},
		})
		var op rollout.Operation
		for i := range all {
			is := nodeNamed(fmt.Sprintf("n-%d", i))
			shall := is.DeepCopy()
			tainting(shall)
			op.Nodes = append(op.Nodes, rollout.NodeChange{Old: is, New: shall})
		}
		ended := make(chan error, 1)
		go func() { ended <- s.current().patchNodes(t.Context(), fixture.Deployment(1), op) }()
		for left := all; left > 0; left-- {
			synctest.Wait() // until all possible requests are waiting for a response
			if got, want := int(underWay.Load()), min(left, maxNodePatches); got != want {
				t.Fatalf("%d nodes remain, %d requests are in progress, want %d", left, got, want)
			}
			respond <- struct{}{}
		}
		if err := <-ended; err != nil || done.Load() != all {
			t.Errorf("%d nodes were written, error %v", done.Load(), err)
		}
	})
}

func nodeNamed(name string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

// tainting marks a node like a rollout.
func tainting(node *corev1.Node) {
	node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: v1alpha1.TaintKeyPreferNoSchedule, Value: isTrue, Effect: corev1.TaintEffectPreferNoSchedule})
}

// TestNodes_EarlyRollbackRemovesTaints checks a rollback of a rollout that has not created a machine
// yet, while one machine is not available.
func TestNodes_EarlyRollbackRemovesTaints(t *testing.T) {
	s := duringRollout(t, 2, 0)
	s.setSet(t, "pool-a", fixture.Reports(2, 1))
	s.pass(t)
	if got, want := s.marksOf(t, "pool-a-0"), tainted+" "+protected; got != want {
		t.Fatalf("marks during the rollout: %q, want %q", got, want)
	}
	s.setSet(t, "pool-a", func(set *v1alpha1.MachineSet) { set.Spec.Replicas = 2 })
	s.setSet(t, "pool-b", func(set *v1alpha1.MachineSet) { set.Spec.Replicas = 0; fixture.Reports(0, 0)(set) })
	s.change(fixture.OfClass("a"))
	for range 3 {
		s.pass(t)
	}
	if got := s.marksOf(t, "pool-a-0"); got != protected {
		t.Errorf("marks after the rollback: %q, want %q", got, protected)
	}
	if got, marked := s.all()["pool-a"].Annotations[v1alpha1.AnnotationKeyPreferNoSchedule]; marked {
		t.Errorf("the set is still annotated as tainted: %q", got)
	}
}

// TestNodes_AreProtectedUntilAllMachinesAreAvailable checks that nodes stay protected after the last old machine is
// gone, until all new machines are available.
func TestNodes_AreProtectedUntilAllMachinesAreAvailable(t *testing.T) {
	s := duringRollout(t, 2, 1)
	s.pass(t)
	finish(t, s)
	s.setSet(t, "pool-b", fixture.Reports(2, 1))
	s.pass(t)
	s.pass(t)
	if got := s.marksOf(t, "pool-b-0"); got != protected {
		t.Errorf("marks while a machine is not available: %q, want %q", got, protected)
	}
	s.setSet(t, "pool-b", fixture.Reports(2, 2))
	s.pass(t)
	if got := s.marksOf(t, "pool-b-0"); got != "" {
		t.Errorf("marks when all machines are available: %q", got)
	}
}
