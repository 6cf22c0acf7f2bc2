package noderef_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/noderef"
)

// spoilt returns a template in which one entry of each kind is valid.
func spoilt() v1alpha1.NodeTemplateSpec {
	return v1alpha1.NodeTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{
			Labels:      map[string]string{"good": "1", "bad key": "v", "tier": "not a value"},
			Annotations: map[string]string{"Good": "any value", "bad key": "v"},
		},
		Spec: corev1.NodeSpec{Taints: []corev1.Taint{
			{Key: "bad key", Effect: corev1.TaintEffectNoSchedule},
			{Key: "good", Value: "1", Effect: corev1.TaintEffectNoExecute},
			{Key: "good", Value: "2", Effect: corev1.TaintEffectNoExecute}, {Key: "good", Value: "1", Effect: corev1.TaintEffectNoExecute},
			{Key: "bad", Effect: "Nope"}, {Key: "worse", Value: "not a value", Effect: corev1.TaintEffectNoSchedule},
		}},
	}
}

// TestAdopt_SkipsInvalidEntries checks that invalid entries are ignored and do not prevent the others from being applied.
func TestAdopt_SkipsInvalidEntries(t *testing.T) {
	n := &corev1.Node{}
	adopt(t, n, spoilt())
	if diff := cmp.Diff(map[string]string{"good": "1", v1alpha1.LabelKeyMachineName: "machine-1"}, n.Labels); diff != "" {
		t.Errorf("labels (-want +got):\n%s", diff)
	}
	if len(n.Annotations) != 2 || n.Annotations["Good"] == "" || strings.Contains(n.Annotations[record], "bad") {
		t.Errorf("annotations %q: want the good one, and a record of what was applied", n.Annotations)
	}
	if diff := cmp.Diff([]corev1.Taint{{Key: "good", Value: "1", Effect: corev1.TaintEffectNoExecute}}, n.Spec.Taints); diff != "" {
		t.Errorf("taints (-want +got):\n%s", diff)
	}
	again := n.DeepCopy()
	adopt(t, again, spoilt())
	if diff := cmp.Diff(n, again); diff != "" {
		t.Errorf("the second time (-first +second):\n%s", diff)
	}
	corrected := spoilt()
	delete(corrected.Labels, "bad key")
	corrected.Labels["tier"] = "value"
	corrected.Spec.Taints[4].Effect = corev1.TaintEffectNoSchedule
	adopt(t, n, corrected)
	if n.Labels["tier"] != "value" || len(n.Spec.Taints) != 2 {
		t.Errorf("corrected: labels %q, taints %v", n.Labels, n.Spec.Taints)
	}
}

// TestAdopt_InvalidEntriesKeepCurrentValues checks that an invalid entry removes nothing from a node, and that the entry that
// it left there is removed by the next template.
func TestAdopt_InvalidEntriesKeepCurrentValues(t *testing.T) {
	n := &corev1.Node{}
	good := labelled(map[string]string{"tier": "a"})
	good.Spec.Taints = []corev1.Taint{{Key: "dedicated", Value: "a", Effect: corev1.TaintEffectNoSchedule}}
	adopt(t, n, good)
	bad := labelled(map[string]string{"tier": "not a value"})
	bad.Spec.Taints = []corev1.Taint{{Key: "dedicated", Value: "a", Effect: "Noschedule"}}
	adopt(t, n, bad)
	if n.Labels["tier"] != "a" || len(n.Spec.Taints) != 1 {
		t.Errorf("labels %q, taints %v: want the previous ones", n.Labels, n.Spec.Taints)
	}
	adopt(t, n, v1alpha1.NodeTemplateSpec{})
	if _, left := n.Labels["tier"]; left || len(n.Spec.Taints) != 0 {
		t.Errorf("labels %q, taints %v: want none of them", n.Labels, n.Spec.Taints)
	}
}

// TestInvalid_ListsSkippedEntries checks that all invalid entries are reported in a stable order, and no valid ones.
func TestInvalid_ListsSkippedEntries(t *testing.T) {
	machine := newMachine(spoilt())
	machine.Name = strings.Repeat("m", 64)
	want := []string{
		`label "bad key" with value "v": name part`, `label "tier" with value "not a value": a valid label must`,
		`annotation "bad key": name part`,
		`taint "bad key:NoSchedule": name part`, `taint "good=2:NoExecute": has the same key and effect as "good=1:NoExecute"`,
		`taint "bad:Nope": the effect must be`, `taint "worse=not a value:NoSchedule": a valid label must`,
		`label "` + v1alpha1.LabelKeyMachineName + `" with value "mmm`,
	}
	for range 20 {
		got := noderef.Invalid(&corev1.Node{}, machine)
		if !slices.EqualFunc(got, want, strings.HasPrefix) {
			t.Fatalf("got %q, want %q", got, want)
		}
	}
	if got := noderef.Invalid(&corev1.Node{}, newMachine(labelled(map[string]string{"a/b": ""}))); len(got) != 0 {
		t.Errorf("%q is reported for valid entries", got)
	}
}

// TestAdopt_MachineNameInvalidAsLabel checks that a node gets the finalizer even if the name of its machine is not a valid
// label value.
func TestAdopt_MachineNameInvalidAsLabel(t *testing.T) {
	n, machine := &corev1.Node{}, newMachine(labelled(map[string]string{"a": "b"}))
	machine.Name = strings.Repeat("m", 64)
	if err := noderef.Adopt(n, machine); err != nil {
		t.Fatal(err)
	}
	if len(n.Finalizers) != 1 || len(n.Labels) != 1 || n.Labels["a"] != "b" {
		t.Errorf("finalizers %v, labels %v", n.Finalizers, n.Labels)
	}
}

func TestLacks(t *testing.T) {
	n, template := &corev1.Node{}, spoilt()
	if diff := cmp.Diff([]string{"labels", "annotations", "taints"}, noderef.Lacks(n, newMachine(template))); diff != "" {
		t.Errorf("of a new node (-want +got):\n%s", diff)
	}
	if len(n.Labels) != 0 || len(n.Annotations) != 0 || len(n.Spec.Taints) != 0 {
		t.Errorf("the node was changed: %v", n)
	}
	adopt(t, n, template)
	if got := noderef.Lacks(n, newMachine(template)); len(got) != 0 {
		t.Errorf("an adopted node lacks its %q", got)
	}
	n.Labels["good"] = "2"
	if diff := cmp.Diff([]string{"labels"}, noderef.Lacks(n, newMachine(template))); diff != "" {
		t.Errorf("of a changed label (-want +got):\n%s", diff)
	}
	if got := noderef.Lacks(&corev1.Node{}, newMachine(v1alpha1.NodeTemplateSpec{})); len(got) != 0 {
		t.Errorf("without a template a node lacks %q", got)
	}
}
