package rollout

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/reserve"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

const (
	candidate = v1alpha1.LabelKeyNodeCandidateForUpdate
	selected  = v1alpha1.LabelKeyNodeSelectedForUpdate
	result    = v1alpha1.LabelKeyNodeUpdateResult
)

// updated returns a Machine of an old set and its node with labels.
func updated(phase v1alpha1.MachinePhase, reason string, labels map[string]string) (*v1alpha1.Machine, *corev1.Node) {
	machine := fixture.Running(fixture.Set("a", 1), "m")
	machine.Status.CurrentStatus.Phase = phase
	machine.Status.Conditions = []corev1.NodeCondition{{Type: v1alpha1.NodeInPlaceUpdate, Status: corev1.ConditionTrue, Reason: reason}}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "m", Labels: labels}}
	node.Status.Conditions = machine.Status.Conditions
	return machine, node
}

func TestBlocked(t *testing.T) {
	t.Parallel()
	failed := map[string]string{candidate: "true", selected: "true", result: "failed"}
	for reason, test := range map[string]struct {
		phase     v1alpha1.MachinePhase
		condition string
		labels    map[string]string
		failure   string
		manual    bool
		want      string
	}{
		"it waits for its turn":       {v1alpha1.MachineRunning, v1alpha1.CandidateForUpdate, map[string]string{candidate: "true"}, "", false, ""},
		"it waits for users":          {v1alpha1.MachineRunning, v1alpha1.CandidateForUpdate, map[string]string{candidate: "true"}, "", true, "its node is not selected"},
		"a user has selected it":      {v1alpha1.MachineRunning, v1alpha1.SelectedForUpdate, map[string]string{candidate: "true", selected: "true"}, "", true, ""},
		"it is being updated":         {v1alpha1.MachineInPlaceUpdating, v1alpha1.ReadyForUpdate, map[string]string{candidate: "true", selected: "true"}, "", false, ""},
		"the agent reports a reason":  {v1alpha1.MachineInPlaceUpdateFailed, v1alpha1.UpdateFailed, failed, "no space left", false, "the update of its node failed: no space left"},
		"the agent reports no reason": {v1alpha1.MachineInPlaceUpdateFailed, v1alpha1.UpdateFailed, failed, "", false, "the update of its node failed: took too long"},
		"it is replaced":              {v1alpha1.MachineFailed, v1alpha1.UpdateFailed, failed, "no space left", false, ""},
		"a label has another value":   {v1alpha1.MachineRunning, v1alpha1.CandidateForUpdate, map[string]string{candidate: "yes"}, "", false, `its node has invalid labels: label ` + candidate + ` is "yes", not "true"`},
		"an invalid result":           {v1alpha1.MachineInPlaceUpdating, v1alpha1.ReadyForUpdate, map[string]string{candidate: "true", selected: "true", result: "done"}, "", false, `its node has invalid labels: label ` + result + ` is "done", neither "successful" nor "failed"`},
	} {
		t.Run(reason, func(t *testing.T) {
			t.Parallel()
			machine, node := updated(test.phase, test.condition, test.labels)
			machine.Status.LastOperation.Description = "took too long"
			if test.failure != "" {
				node.Annotations = map[string]string{v1alpha1.AnnotationKeyMachineUpdateFailedReason: test.failure}
			}
			set := fixture.Set("a", 1)
			r := New(Facts{
				Deployment: fixture.Deployment(1, fixture.InPlace("0", "1")), Old: []*v1alpha1.MachineSet{set},
				Machines: map[string][]*v1alpha1.Machine{set.Name: {machine}}, Nodes: &Nodes{OfOld: []Node{{machine, node}}},
			})
			var want []string
			if test.want != "" {
				want = []string{"machine " + machine.Name + ": " + test.want}
			}
			if diff := cmp.Diff(want, r.blocked(test.manual)); diff != "" {
				t.Errorf("want - got +:\n%s", diff)
			}
		})
	}
}

// TestInPlaceUpdate_ExcessMachinesFirst checks that excess Machines are updated first, because no Pods run on
// them.
func TestInPlaceUpdate_ExcessMachinesFirst(t *testing.T) {
	t.Parallel()
	old := fixture.Set("a", 3)
	f := Facts{
		Deployment: fixture.Deployment(3, fixture.InPlace("0", "1")), Old: []*v1alpha1.MachineSet{old}, Current: fixture.Set("b", 0),
		Machines: map[string][]*v1alpha1.Machine{}, Nodes: &Nodes{},
	}
	for _, name := range []string{"a", "b", "c"} {
		machine, node := updated(v1alpha1.MachineRunning, v1alpha1.CandidateForUpdate, map[string]string{candidate: "true"})
		machine.Name, node.Name = name, name
		if name == "c" {
			machine.Spec = *reserve.Marked(&machine.Spec, reserve.NoSchedule)
		}
		f.Machines[old.Name], f.Nodes.OfOld = append(f.Machines[old.Name], machine), append(f.Nodes.OfOld, Node{machine, node})
	}
	if diff := cmp.Diff(map[string]bool{"c": true}, New(f).selectable()); diff != "" {
		t.Errorf("want - got +:\n%s", diff)
	}
}
