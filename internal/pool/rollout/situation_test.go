package rollout

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/counts"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

// situation describes a deployment of class "b" in the middle of a rollout.
type situation struct {
	deployment *v1alpha1.MachineDeployment
	// old and current describe the sets of class "a" and "b", as in "2 m1; m2 updating": their replicas, and their
	// Machines with their states and the marks of their nodes. A Machine without a state is Running. If empty, the set
	// does not exist. For an in-place update, the old set has the label that prevents it from creating Machines.
	old, current string
	// differs changes the facts.
	differs func(*Facts)
}

// states are the states of Machines, with their nodes.
var states = map[string]func(*v1alpha1.Machine, *corev1.Node){
	"pending":   ofPhase(v1alpha1.MachinePending),
	"unknown":   ofPhase(v1alpha1.MachineUnknown),
	"leaving":   func(m *v1alpha1.Machine, _ *corev1.Node) { m.DeletionTimestamp = &metav1.Time{Time: fixture.Noon} },
	"preserved": func(m *v1alpha1.Machine, _ *corev1.Node) { fixture.PreservedUntil(fixture.Noon.Add(1))(m) },
	"named":     func(m *v1alpha1.Machine, _ *corev1.Node) { fixture.MarkedAt(fixture.Early)(m) },
	"nodeless":  func(_ *v1alpha1.Machine, n *corev1.Node) { n.Name = "" },
	"moved": func(m *v1alpha1.Machine, _ *corev1.Node) {
		metav1.SetMetaDataLabel(&m.ObjectMeta, result, v1alpha1.LabelValueNodeUpdateSuccessful)
	},
	"updating": inUpdate(v1alpha1.MachineInPlaceUpdating, v1alpha1.ReadyForUpdate),
	"updated":  inUpdate(v1alpha1.MachineInPlaceUpdateSuccessful, v1alpha1.UpdateSuccessful, "successful"),
	"failed":   inUpdate(v1alpha1.MachineInPlaceUpdateFailed, v1alpha1.UpdateFailed, "unsuccessful"),
}

func ofPhase(phase v1alpha1.MachinePhase) func(*v1alpha1.Machine, *corev1.Node) {
	return func(m *v1alpha1.Machine, _ *corev1.Node) { m.Status.CurrentStatus.Phase = phase }
}

// inUpdate returns a change to a Machine whose node was selected and may have a result.
func inUpdate(phase v1alpha1.MachinePhase, state string, result ...string) func(*v1alpha1.Machine, *corev1.Node) {
	condition := corev1.NodeCondition{Type: v1alpha1.NodeInPlaceUpdate, Status: corev1.ConditionTrue, Reason: state}
	return func(m *v1alpha1.Machine, n *corev1.Node) {
		m.Status.CurrentStatus.Phase, m.Status.LastOperation.Description = phase, "of agent"
		m.Status.Conditions, n.Status.Conditions = []corev1.NodeCondition{condition}, []corev1.NodeCondition{condition}
		for _, mark := range append([]string{"candidate", "selected"}, result...) {
			marks[slices.Index(markNames, mark)](n)
		}
	}
}

// markNames are the names of the marks of nodes. marks puts each of them on a node, unless the node has it.
var (
	markNames = []string{"taint", "protected", "kept", "candidate", "selected", "successful", "unsuccessful", "cordoned"}
	marks     = []func(*corev1.Node){
		func(n *corev1.Node) {
			if !slices.ContainsFunc(n.Spec.Taints, isOurTaint) {
				n.Spec.Taints = append(n.Spec.Taints, ourTaint)
			}
		},
		annotate(v1alpha1.AnnotationKeyScaleDownDisabledByMCM, v1alpha1.AnnotationKeyScaleDownDisabled),
		annotate(v1alpha1.AnnotationKeyScaleDownDisabled), // as users do
		label(candidate, "true"), label(selected, "true"),
		label(result, v1alpha1.LabelValueNodeUpdateSuccessful), label(result, v1alpha1.LabelValueNodeUpdateFailed),
		func(n *corev1.Node) { n.Spec.Unschedulable = true },
	}
)

func annotate(keys ...string) func(*corev1.Node) {
	return func(n *corev1.Node) {
		for _, key := range keys {
			metav1.SetMetaDataAnnotation(&n.ObjectMeta, key, "true")
		}
	}
}

func label(key, value string) func(*corev1.Node) {
	return func(n *corev1.Node) { metav1.SetMetaDataLabel(&n.ObjectMeta, key, value) }
}

// marksOf returns the names of the marks that a node has, which are those that change nothing.
func marksOf(node *corev1.Node) string {
	var has []string
	for i, put := range marks {
		marked := node.DeepCopy()
		put(marked)
		if equality.Semantic.DeepEqual(marked, node) && (markNames[i] != "kept" || !protected(node)) {
			has = append(has, markNames[i])
		}
	}
	return strings.Join(has, " ")
}

// described returns a Machine of a set and its node.
func described(set *v1alpha1.MachineSet, description string) Node {
	name, rest, _ := strings.Cut(description, " ")
	n := Node{Machine: fixture.Member(set, name), Node: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}}
	for name := range strings.FieldsSeq(rest) {
		if at := slices.Index(markNames, name); at >= 0 {
			marks[at](n.Node)
		} else {
			states[name](n.Machine, n.Node)
		}
	}
	return n
}

// set returns the set of a class with its Machines. It has reported all of them.
func (s situation) set(f *Facts, class, description string) *v1alpha1.MachineSet {
	replicas, list, _ := strings.Cut(description, " ")
	desired, err := strconv.Atoi(replicas)
	if err != nil {
		panic(err)
	}
	set := fixture.Set(class, int32(desired), fixture.WithUID)
	set.Annotations[v1alpha1.AnnotationKeyLastReplicaChange] = fixture.Later
	if updatesInPlace(s.deployment) && class == "a" {
		metav1.SetMetaDataLabel(&set.ObjectMeta, v1alpha1.LabelKeyMachineSetScaleUpDisabled, "true")
	}
	var machines []*v1alpha1.Machine
	var available int32
	for description := range strings.FieldsFuncSeq(list, func(r rune) bool { return r == ';' }) {
		n := described(set, strings.TrimSpace(description))
		machines = append(machines, n.Machine)
		if !counts.Active(n.Machine) {
			continue
		}
		if counts.Usable(n.Machine) {
			available++
		}
		add(f, class, n)
	}
	fixture.Reports(int32(len(machines)), available)(set)
	f.Retained[set.Name] = Retained(set, machines, f.Now)
	if f.Machines != nil {
		f.Machines[set.Name] = machines
	}
	return set
}

// add adds the node of a Machine of a class to the facts, if it is known.
func add(f *Facts, class string, node Node) {
	switch {
	case node.Node.Name == "":
	case class == "a":
		f.Nodes.OfOld = append(f.Nodes.OfOld, node)
	default:
		f.Nodes.OfCurrent = append(f.Nodes.OfCurrent, node)
	}
}

// rollout returns the rollout of the situation.
func (s situation) rollout() *Rollout {
	fixture.OfClass("b")(s.deployment)
	f := Facts{Deployment: s.deployment, Retained: map[string]int32{}, Nodes: &Nodes{Protect: true}, Now: fixture.Noon}
	if updatesInPlace(s.deployment) {
		f.Machines = map[string][]*v1alpha1.Machine{}
	}
	if s.old != "" {
		f.Old = sets{s.set(&f, "a", s.old)}
	}
	if s.current != "" {
		f.Current = s.set(&f, "b", s.current)
	}
	if s.differs != nil {
		s.differs(&f)
	}
	return New(f)
}

// patches returns the changes to nodes: the reason of the event, if any, its message, and the marks of each node.
func patches(operations []Operation) (lines []string) {
	for _, op := range operations {
		if op.Action != PatchNodes {
			continue
		}
		lines = append(lines, op.Topic+": "+op.Reason)
		for _, change := range op.Nodes {
			lines = append(lines, change.New.Name+" "+marksOf(change.New))
		}
	}
	return lines
}

// TestSituation_MarksDiffer checks that each mark is recognized on a node that has only this one.
func TestSituation_MarksDiffer(t *testing.T) {
	t.Parallel()
	for i, name := range markNames {
		node := &corev1.Node{}
		marks[i](node)
		if got := marksOf(node); got != name {
			t.Errorf("a node with %q has %q", name, got)
		}
	}
}

// changes returns the planned changes to sets and Machines, and the newly selected nodes.
func changes(operations []Operation) (lines []string) {
	for _, op := range operations {
		switch op.Action {
		case Create:
			lines = append(lines, fmt.Sprintf("create %d", op.Replicas))
		case Scale:
			lines = append(lines, fmt.Sprintf("%s to %d", op.Set.Name, op.Replicas))
		case Transfer, Settle:
			lines = append(lines, fmt.Sprintf("%s %s", op.Action, op.Machine.Name))
		case PatchNodes:
			for _, node := range op.Nodes {
				if _, was := node.Old.Labels[selected]; !was && node.New.Labels[selected] != "" {
					lines = append(lines, "select "+node.New.Name)
				}
			}
		}
	}
	return lines
}
