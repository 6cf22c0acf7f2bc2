package rollout

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

func TestInPlaceUpdate_PreservedNodeStaysProtected(t *testing.T) {
	t.Parallel()
	f := NewFacts(fixture.Deployment(1, fixture.OfClass("b")), sets{fixture.Set("a", 0), fixture.Set("b", 1)}, fixture.Noon)
	machine := fixture.Member(f.Current, "m")
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "m", Annotations: map[string]string{
		v1alpha1.AnnotationKeyScaleDownDisabled: "true", v1alpha1.AnnotationKeyScaleDownDisabledByMCM: "true",
	}}}
	f.Nodes = &Nodes{OfCurrent: []Node{{machine, node}}, Protect: true}
	if got := planNodes(New(f)); len(got) != 1 || len(got[0].Nodes[0].New.Annotations) != 0 {
		t.Errorf("the marks of a completed rollout were not removed: %+v", got)
	}
	machine.Status.CurrentStatus.PreserveExpiryTime = &metav1.Time{Time: fixture.Noon.Add(1)}
	if got := planNodes(New(f)); len(got) != 0 {
		t.Errorf("the protection of a preserved node was removed: %+v", got)
	}
	if len(node.Annotations) != 2 {
		t.Error("the node of the cache was changed")
	}
}

// TestInPlaceUpdate_NodesOfCurrentSet tests the changes to a node whose Machine is in the current set. A
// finished node must not become a candidate again, or its Machine would wait for an update that never happens.
func TestInPlaceUpdate_NodesOfCurrentSet(t *testing.T) {
	t.Parallel()
	const candidate, selected, result = v1alpha1.LabelKeyNodeCandidateForUpdate, v1alpha1.LabelKeyNodeSelectedForUpdate, v1alpha1.LabelKeyNodeUpdateResult
	all := map[string]string{candidate: "true", selected: "true", result: v1alpha1.LabelValueNodeUpdateSuccessful}
	for name, tc := range map[string]struct {
		moved       bool
		phase       v1alpha1.MachinePhase
		state       string
		node        string // the node's condition; state is the Machine's copy
		labels      map[string]string
		want        map[string]string
		schedulable bool
	}{
		"updated, and moved": {moved: true, phase: v1alpha1.MachineInPlaceUpdateSuccessful, state: v1alpha1.UpdateSuccessful, labels: all, want: map[string]string{}, schedulable: true},
		"finished":           {moved: true, phase: v1alpha1.MachineInPlaceUpdateSuccessful, state: v1alpha1.UpdateSuccessful, want: map[string]string{}},
		"finished, settled":  {phase: v1alpha1.MachineInPlaceUpdateSuccessful, state: v1alpha1.UpdateSuccessful, want: map[string]string{}},
		"finished, not shown by its machine yet": {
			moved: true, phase: v1alpha1.MachineRunning, state: v1alpha1.ReadyForUpdate, node: v1alpha1.UpdateSuccessful, want: map[string]string{},
		},
		"selected before a rollback": {
			phase: v1alpha1.MachineInPlaceUpdating, state: v1alpha1.ReadyForUpdate, labels: map[string]string{selected: "true"},
			want: map[string]string{candidate: "true", selected: "true"},
		},
		"a candidate from before a rollback": {phase: v1alpha1.MachineRunning, state: v1alpha1.CandidateForUpdate, labels: map[string]string{candidate: "true"}, want: map[string]string{}},
		"not concerned":                      {phase: v1alpha1.MachineRunning, want: map[string]string{}},
	} {
		t.Run(name, func(t *testing.T) {
			machine := fixture.Machine(func(machine *v1alpha1.Machine) {
				machine.Status.CurrentStatus.Phase = tc.phase
				if tc.state != "" {
					machine.Status.Conditions = []corev1.NodeCondition{{Type: v1alpha1.NodeInPlaceUpdate, Reason: tc.state}}
				}
				if tc.moved {
					metav1.SetMetaDataLabel(&machine.ObjectMeta, result, v1alpha1.LabelValueNodeUpdateSuccessful)
				}
			})
			cached := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: tc.labels}, Spec: corev1.NodeSpec{Unschedulable: true}}
			if tc.node != "" {
				cached.Status.Conditions = []corev1.NodeCondition{{Type: v1alpha1.NodeInPlaceUpdate, Reason: tc.node}}
			}
			node := cached.DeepCopy()
			updateCurrent(Node{Machine: machine, Node: cached}, node)
			if diff := cmp.Diff(tc.want, node.Labels, cmpopts.EquateEmpty()); diff != "" || node.Spec.Unschedulable == tc.schedulable {
				t.Errorf("unschedulable %v, labels (-want +got):\n%s", node.Spec.Unschedulable, diff)
			}
		})
	}
}
