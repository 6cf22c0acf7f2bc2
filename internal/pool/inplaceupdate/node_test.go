package inplaceupdate

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

// The short names of the labels.
const (
	candidate  = v1alpha1.LabelKeyNodeCandidateForUpdate
	selected   = v1alpha1.LabelKeyNodeSelectedForUpdate
	result     = v1alpha1.LabelKeyNodeUpdateResult
	successful = v1alpha1.LabelValueNodeUpdateSuccessful
	failed     = v1alpha1.LabelValueNodeUpdateFailed
)

// labelledNode returns a node with labels and the reason of a condition. A label is key=value, or a key with
// the value "true".
func labelledNode(reason string, labels ...string) *corev1.Node {
	node := fixture.LabelledNode(labels...)
	if reason != "" {
		node.Status.Conditions = []corev1.NodeCondition{{Type: v1alpha1.NodeInPlaceUpdate, Status: corev1.ConditionTrue, Reason: reason}}
	}
	return node
}

func TestNode_CheckFindsMisplacedLabels(t *testing.T) {
	cases := map[string]struct {
		node *corev1.Node
		want string
	}{
		"none":                    {labelledNode(""), ""},
		"candidate":               {labelledNode(v1alpha1.CandidateForUpdate, candidate), ""},
		"drained":                 {labelledNode(v1alpha1.SelectedForUpdate, candidate, selected), ""},
		"ready":                   {labelledNode(v1alpha1.ReadyForUpdate, candidate, selected), ""},
		"reported":                {labelledNode(v1alpha1.ReadyForUpdate, candidate, selected, result+"="+successful), ""},
		"updated":                 {labelledNode(v1alpha1.UpdateSuccessful, candidate, selected, result+"="+successful), ""},
		"failed":                  {labelledNode(v1alpha1.UpdateFailed, candidate, selected, result+"="+failed), ""},
		"done":                    {labelledNode(v1alpha1.UpdateSuccessful), ""},
		"selected only":           {labelledNode("", selected), "has no effect"},
		"result only":             {labelledNode("", result+"="+successful), "has no effect"},
		"result of a candidate":   {labelledNode(v1alpha1.CandidateForUpdate, candidate, result+"="+successful), "was not selected"},
		"result before the drain": {labelledNode(v1alpha1.SelectedForUpdate, candidate, selected, result+"="+failed), "not ready"},
		"no such result":          {labelledNode(v1alpha1.ReadyForUpdate, candidate, selected, result+"=perhaps"), `is "perhaps", neither`},
		"not selected any more":   {labelledNode(v1alpha1.SelectedForUpdate, candidate), "the update continues"},
		"no candidate any more":   {labelledNode(v1alpha1.ReadyForUpdate, selected), "the update continues"},
		"another value":           {labelledNode(v1alpha1.CandidateForUpdate, candidate+"=yes"), `is "yes", not "true"`},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := Read(tc.node).Check(&v1alpha1.Machine{}).Message
			if tc.want == "" && got != "" || !strings.Contains(got, tc.want) {
				t.Errorf("%q, want %q", got, tc.want)
			}
		})
	}
}
