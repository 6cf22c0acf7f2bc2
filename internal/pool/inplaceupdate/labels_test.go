package inplaceupdate

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

func TestSameLabels_ComparesLabelsOfUpdates(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		a, b []string
		want bool
	}{
		"none":           {nil, nil, true},
		"same":           {[]string{candidate, selected}, []string{selected, candidate}, true},
		"other labels":   {[]string{candidate, "a"}, []string{candidate, "b"}, true},
		"another label":  {[]string{candidate}, []string{candidate, selected}, false},
		"another value":  {[]string{result + "=" + failed}, []string{result + "=" + successful}, false},
		"an empty value": {[]string{candidate + "="}, nil, false},
	} {
		if got := SameLabels(labelledNode("", test.a...), labelledNode("", test.b...)); got != test.want {
			t.Errorf("%s: %t, want %t", name, got, test.want)
		}
	}
}

func TestNominate_LabelsNode(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		given   []string
		selects bool
		want    map[string]string
	}{
		"candidate":                       {nil, false, map[string]string{candidate: "true"}},
		"selected":                        {nil, true, map[string]string{candidate: "true", selected: "true"}},
		"other labels remain":             {[]string{"own"}, true, map[string]string{"own": "true", candidate: "true", selected: "true"}},
		"candidate keeps another value":   {[]string{candidate + "=yes"}, false, map[string]string{candidate: "yes"}},
		"selected corrects other values":  {[]string{candidate + "=yes", selected + "=no"}, true, map[string]string{candidate: "true", selected: "true"}},
		"candidate gets an absent value":  {[]string{candidate + "="}, false, map[string]string{candidate: "true"}},
		"candidate does not lose another": {[]string{selected}, false, map[string]string{candidate: "true", selected: "true"}},
	} {
		node := labelledNode("", test.given...)
		Nominate(node, test.selects)
		if diff := cmp.Diff(test.want, node.Labels); diff != "" {
			t.Errorf("%s: want - got +\n%s", name, diff)
		}
	}
}

func TestFinish_AddsTaintOnce(t *testing.T) {
	t.Parallel()
	node := labelledNode("", candidate, selected, result+"="+successful, "own")
	node.Spec.Unschedulable = true
	own := corev1.Taint{Key: "own", Effect: corev1.TaintEffectNoSchedule}
	node.Spec.Taints = []corev1.Taint{own, {Key: v1alpha1.TaintKeyToBeDeleted, Value: "1700000000", Effect: corev1.TaintEffectNoSchedule}}
	node.Annotations = map[string]string{v1alpha1.AnnotationKeyMachineUpdateFailedReason: "disk full", "own": "yes"}
	want := labelledNode("", "own")
	want.Spec.Taints = []corev1.Taint{own, {Key: v1alpha1.TaintKeyCriticalComponentsNotReady, Effect: corev1.TaintEffectNoSchedule}}
	want.Annotations = map[string]string{"own": "yes"}
	for range 2 {
		Finish(node)
		if diff := cmp.Diff(want, node); diff != "" {
			t.Errorf("want - got +\n%s", diff)
		}
	}
}

func TestRead_OfNilIsEmpty(t *testing.T) {
	t.Parallel()
	if diff := cmp.Diff(Node{}, Read(nil), cmp.AllowUnexported(Node{})); diff != "" {
		t.Errorf("want - got +\n%s", diff)
	}
}

func TestNode_CheckOfResult(t *testing.T) {
	t.Parallel()
	machine := machineIn(running, "")
	for name, test := range map[string]struct {
		machine *v1alpha1.Machine
		node    *corev1.Node
		want    string
	}{
		"result only, of a moved machine":           {moved(), labelledNode("", result+"="+successful), ""},
		"result only, of another machine":           {machine, labelledNode("", result+"="+successful), "has no effect without " + candidate},
		"result only, during the update":            {machine, labelledNode(v1alpha1.ReadyForUpdate, result+"="+successful), "was not selected"},
		"result of a candidate, during the update":  {machine, labelledNode(v1alpha1.ReadyForUpdate, candidate, result+"="+successful), "was not selected"},
		"result of no candidate, during the update": {machine, labelledNode(v1alpha1.ReadyForUpdate, selected, result+"="+successful), "has no effect without " + candidate},
		"result of no candidate, after an update":   {machine, labelledNode(v1alpha1.UpdateSuccessful, result+"="+successful), "has no effect without " + candidate},
	} {
		got := Read(test.node).Check(test.machine)
		if test.want == "" && got != (Problem{}) || !strings.Contains(got.Message, test.want) {
			t.Errorf("%s: %+v, want %q", name, got, test.want)
		}
	}
}
