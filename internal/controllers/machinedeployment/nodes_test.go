package machinedeployment

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/fixture"
)

// rollout is a server with an old set a and a current set b, each of whose machines has a
// node.
func rollout(t *testing.T, a, b int32, changes ...change) *server {
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

// marksOf are the marks of a node, in short.
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

// finish lets the old set lose its machines and the current one have all.
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

// TestNodesAreMarkedOnceAndUnmarkedOnce also counts the writes: one for an old node, two
// for a new one.
func TestNodesAreMarkedOnceAndUnmarkedOnce(t *testing.T) {
	s := rollout(t, 2, 1)
	for range 3 {
		s.pass(t)
	}
	for name, want := range map[string]string{"pool-a-0": tainted + " " + protected, "pool-a-1": tainted + " " + protected, "pool-b-0": protected} {
		if got := s.marksOf(t, name); got != want {
			t.Errorf("%s bears %q, want %q", name, got, want)
		}
	}
	if n := nodeWrites(s); n != 3 {
		t.Errorf("%d writes to 3 nodes", n)
	}
	if s.all()["pool-a"].Annotations[v1alpha1.AnnotationKeyPreferNoSchedule] != "True" {
		t.Error("the set does not say that its nodes are tainted")
	}
	at := slices.IndexFunc(s.writes, func(w string) bool { return w == "patch pool-a" })
	if taint := slices.Index(s.writes, "patch node pool-a-0"); at >= 0 && taint > at {
		t.Errorf("the set is scaled before its nodes are tainted: %q", s.writes)
	}

	finish(t, s)
	s.writes = nil
	for range 3 {
		s.pass(t)
	}
	if got := s.marksOf(t, "pool-b-0"); got != "" || nodeWrites(s) != 1 {
		t.Errorf("after the rollout it bears %q, and there were %q", got, s.writes)
	}
	marked := 0
	for _, line := range s.lines {
		if strings.HasPrefix(line, "NodesMarked: ") || strings.HasPrefix(line, "NodesUnmarked: ") {
			marked++
		}
	}
	if marked != 2 {
		t.Errorf("want one event at the beginning and one at the end, got %q", s.lines)
	}
}

func TestWhatAUserSaidOfANodeStays(t *testing.T) {
	users := func(node *corev1.Node) {
		metav1.SetMetaDataAnnotation(&node.ObjectMeta, v1alpha1.AnnotationKeyScaleDownDisabled, "true")
	}
	s := rollout(t, 1, 2)
	s.setNode(t, "pool-b-0", users)
	s.pass(t)
	finish(t, s)
	s.pass(t)
	if got, want := s.marksOf(t, "pool-b-0"), "scale-down-disabled=true"; got != want {
		t.Errorf("it bears %q, want %q", got, want)
	}
	if got := s.marksOf(t, "pool-b-1"); got != "" {
		t.Errorf("the other bears %q", got)
	}
}

func TestNodesWithoutProtection(t *testing.T) {
	s := rollout(t, 2, 1)
	s.ProtectNodes = false
	s.pass(t)
	if got := s.marksOf(t, "pool-a-0") + s.marksOf(t, "pool-b-0"); got != tainted {
		t.Errorf("got %q", got)
	}
}

// TestATaintedSetIsCurrentAgain: its nodes lose the taint at once, those of the other set
// get it.
func TestATaintedSetIsCurrentAgain(t *testing.T) {
	s := rollout(t, 2, 1)
	s.pass(t)
	s.change(fixture.OfClass("a"))
	s.pass(t)
	if got := s.marksOf(t, "pool-a-0"); got != protected {
		t.Errorf("the node of the current set bears %q", got)
	}
	if got := s.marksOf(t, "pool-b-0"); got != tainted+" "+protected {
		t.Errorf("the node of the other set bears %q", got)
	}
	all := s.all()
	if _, ok := all["pool-a"].Annotations[v1alpha1.AnnotationKeyPreferNoSchedule]; ok {
		t.Error("the current set still says that its nodes are tainted")
	}
	if got := all["pool-a"].Annotations; got[v1alpha1.AnnotationKeyRevision] != "3" || got[v1alpha1.AnnotationKeyRevisionHistory] != "1" {
		t.Errorf("revision %q, history %q", got[v1alpha1.AnnotationKeyRevision], got[v1alpha1.AnnotationKeyRevisionHistory])
	}
}

// TestARolloutDoesNotWaitForItsMarks: neither a target that is away nor one that refuses
// holds it up.
func TestARolloutDoesNotWaitForItsMarks(t *testing.T) {
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
			s := rollout(t, 2, 1)
			prepare(s)
			if result := s.pass(t); result.RequeueAfter == 0 {
				t.Error("it does not try again")
			}
			if got := s.all()["pool-a"].Spec.Replicas; got != 1 {
				t.Errorf("the old set asks for %d, want 1", got)
			}
			s.away, s.refuse = false, nil
			s.pass(t)
			if got := s.marksOf(t, "pool-a-0"); got != tainted+" "+protected {
				t.Errorf("afterwards it bears %q", got)
			}
		})
	}
}

func TestNoMarks(t *testing.T) {
	for reason, change := range map[string]change{"paused": fixture.Paused, "recreate": fixture.Recreate} {
		t.Run(reason, func(t *testing.T) {
			s := rollout(t, 2, 1, change)
			s.pass(t)
			if n := nodeWrites(s); n != 0 {
				t.Errorf("%d writes to nodes", n)
			}
		})
	}
	s := rollout(t, 2, 1)
	s.Target = nil
	s.pass(t)
	if diff := cmp.Diff("", s.marksOf(t, "pool-a-0")); diff != "" {
		t.Error("marked without a target")
	}
}

// TestANodeThatJoinsIsLeftToItsMachine: the Machine's controller writes its taints, and would
// fail if the node changed meanwhile.
func TestANodeThatJoinsIsLeftToItsMachine(t *testing.T) {
	s := rollout(t, 1, 1)
	machine := &v1alpha1.Machine{}
	must(s.live.Get(t.Context(), client.ObjectKey{Namespace: fixture.Namespace, Name: "pool-b-0"}, machine))
	machine.Status.CurrentStatus.Phase = v1alpha1.MachinePending
	must(s.live.Update(t.Context(), machine))
	s.pass(t)
	if got := s.marksOf(t, "pool-b-0"); got != "" {
		t.Errorf("a node that joins has %q", got)
	}
	s.setNode(t, "pool-b-0", func(node *corev1.Node) { node.Finalizers = []string{v1alpha1.FinalizerNode} })
	s.pass(t)
	if got := s.marksOf(t, "pool-b-0"); got != protected {
		t.Errorf("a node that has joined has %q", got)
	}
}

const (
	tainted   = "deployment.machine.sapcloud.io/prefer-no-schedule=True:PreferNoSchedule"
	protected = "scale-down-disabled=true scale-down-disabled-by-mcm=true"
)
