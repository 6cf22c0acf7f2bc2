package machine

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

// Short names of the labels.
const (
	candidate  = v1alpha1.LabelKeyNodeCandidateForUpdate
	selected   = v1alpha1.LabelKeyNodeSelectedForUpdate
	result     = v1alpha1.LabelKeyNodeUpdateResult
	successful = v1alpha1.LabelValueNodeUpdateSuccessful
	failed     = v1alpha1.LabelValueNodeUpdateFailed
)

// labelled returns a node with a condition and labels. A label is given as key=value, or as a key whose value is
// "true".
func labelled(reason string, labels ...string) *corev1.Node {
	node := fixture.LabelledNode(labels...)
	if reason != "" {
		condition, _ := updateState{}.conditionWith(reason, time.Unix(0, 0))
		setNodeCondition(node, condition)
	}
	return node
}

func TestInPlaceUpdate_NextCondition(t *testing.T) {
	const running, updating = v1alpha1.MachineRunning, v1alpha1.MachineInPlaceUpdating
	cases := map[string]struct {
		reason string
		node   *corev1.Node
		phase  v1alpha1.MachinePhase
		want   string
	}{
		"no labels":         {"", labelled(""), running, ""},
		"selected only":     {"a node that is not a candidate is not updated", labelled("", selected), running, ""},
		"candidate":         {"", labelled("", candidate), running, v1alpha1.CandidateForUpdate},
		"any value":         {"only the key matters, as in MCM", labelled("", candidate+"="), running, v1alpha1.CandidateForUpdate},
		"candidate already": {"", labelled(v1alpha1.CandidateForUpdate, candidate), running, ""},
		"both together":     {"the candidate comes before the selection", labelled("", candidate, selected), running, v1alpha1.CandidateForUpdate},
		"selected":          {"", labelled(v1alpha1.CandidateForUpdate, candidate, selected), running, v1alpha1.SelectedForUpdate},
		"to be drained":     {"", labelled(v1alpha1.SelectedForUpdate, candidate, selected), running, ""},
		"drained":           {"the phase shows that the drain is complete", labelled(v1alpha1.SelectedForUpdate, candidate, selected), updating, v1alpha1.DrainSuccessful},
		"then ready":        {"", labelled(v1alpha1.DrainSuccessful, candidate, selected), updating, v1alpha1.ReadyForUpdate},
		"then it waits":     {"", labelled(v1alpha1.ReadyForUpdate, candidate, selected), updating, ""},
		"success":           {"", labelled(v1alpha1.ReadyForUpdate, candidate, selected, result+"="+successful), updating, v1alpha1.UpdateSuccessful},
		"failure":           {"", labelled(v1alpha1.ReadyForUpdate, candidate, selected, result+"="+failed), updating, v1alpha1.UpdateFailed},
		"unknown result":    {"", labelled(v1alpha1.ReadyForUpdate, candidate, selected, result+"=perhaps"), updating, ""},
		"success after all": {"", labelled(v1alpha1.UpdateFailed, candidate, selected, result+"="+successful), v1alpha1.MachineInPlaceUpdateFailed, v1alpha1.UpdateSuccessful},
		"failure stays":     {"MCM does not restart the update either", labelled(v1alpha1.UpdateFailed, candidate, selected), v1alpha1.MachineInPlaceUpdateFailed, ""},
		"fresh success":     {"the deployment removes the labels later", labelled(v1alpha1.UpdateSuccessful, candidate, selected, result+"="+successful), running, v1alpha1.UpdateSuccessful},
		"the next update":   {"", labelled(v1alpha1.UpdateSuccessful, candidate), running, v1alpha1.CandidateForUpdate},
		"updated":           {"", labelled(v1alpha1.UpdateSuccessful), running, ""},

		"old result, drained first": {"an earlier result does not replace the drain", labelled(v1alpha1.SelectedForUpdate, candidate, selected, result+"="+successful), running, ""},
		"result of a candidate":     {"as in MCM, since a user may have updated the node", labelled(v1alpha1.CandidateForUpdate, candidate, result+"="+successful), running, v1alpha1.UpdateSuccessful},
		"result, no candidate":      {"", labelled(v1alpha1.ReadyForUpdate, selected, result+"="+successful), updating, ""},
		"labels gone, drained":      {"as in MCM, the update continues", labelled(v1alpha1.SelectedForUpdate), updating, v1alpha1.DrainSuccessful},
		"labels gone, then ready":   {"", labelled(v1alpha1.DrainSuccessful), updating, v1alpha1.ReadyForUpdate},
		"unknown reason":            {"", labelled("Other", candidate, selected), running, ""},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := readUpdate(tc.node).next(tc.phase); got != tc.want {
				t.Errorf("%s: %q, want %q", tc.reason, got, tc.want)
			}
		})
	}
}

// TestInPlaceUpdate_ConditionsTerminate checks that the sequence of conditions terminates for any labels, phase and condition, and
// that a selected node is always drained.
func TestInPlaceUpdate_ConditionsTerminate(t *testing.T) {
	reasons := []string{"", "Other"}
	for reason := range updateMessages {
		reasons = append(reasons, reason)
	}
	phases := []v1alpha1.MachinePhase{
		"", v1alpha1.MachinePending, v1alpha1.MachineRunning, v1alpha1.MachineUnknown, v1alpha1.MachineFailed,
		v1alpha1.MachineInPlaceUpdating, v1alpha1.MachineInPlaceUpdateSuccessful, v1alpha1.MachineInPlaceUpdateFailed,
	}
	states := 0
	for _, reason := range reasons {
		for _, phase := range phases {
			for labels := range 8 {
				for _, value := range []string{successful, failed, "perhaps"} {
					var on []string
					for i, label := range []string{candidate, selected, result + "=" + value} {
						if labels&(1<<i) != 0 {
							on = append(on, label)
						}
					}
					follow(t, fmt.Sprint(reason, phase, on), labelled(reason, on...), phase)
					states++
				}
			}
		}
	}
	t.Logf("%d states", states)
}

func follow(t *testing.T, name string, node *corev1.Node, phase v1alpha1.MachinePhase) {
	t.Helper()
	for range len(updateMessages) {
		before := readUpdate(node)
		next := before.next(phase)
		condition, news := before.conditionWith(next, time.Unix(1, 0))
		if next == "" || !news {
			return
		}
		if next == v1alpha1.DrainSuccessful && phase != v1alpha1.MachineInPlaceUpdating {
			t.Errorf("%s: the drain was skipped in phase %s", name, phase)
		}
		setNodeCondition(node, condition)
	}
	t.Errorf("%s: the sequence does not terminate", name)
}

func TestInPlaceUpdate_ConditionFields(t *testing.T) {
	now := time.Unix(100, 0)
	n := readUpdate(labelled(v1alpha1.ReadyForUpdate, candidate, selected, result+"="+failed))
	n.FailureReason = "no space left"
	got, news := n.conditionWith(v1alpha1.UpdateFailed, now)
	want := corev1.NodeCondition{
		Type: "InPlaceUpdate", Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(now),
		Reason: "UpdateFailed", Message: "Node in-place update failed: no space left",
	}
	if !news || got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	n.Condition = got
	if _, news := n.conditionWith(v1alpha1.UpdateFailed, now.Add(time.Hour)); news {
		t.Error("an unchanged condition is reported as changed")
	}
	n.FailureReason = "no space left on /"
	if got, news := n.conditionWith(v1alpha1.UpdateFailed, now.Add(time.Hour)); !news || got.LastTransitionTime != want.LastTransitionTime {
		t.Errorf("after the agent's reason changed: %+v, changed = %v", got, news)
	}
}

func TestInPlaceUpdate_DrainedPhases(t *testing.T) {
	for phase, want := range map[v1alpha1.MachinePhase]bool{
		"": false, v1alpha1.MachinePending: false, v1alpha1.MachineCrashLoopBackOff: false, v1alpha1.MachineFailed: false,
		v1alpha1.MachineRunning: true, v1alpha1.MachineUnknown: true, v1alpha1.MachineInPlaceUpdating: false,
		v1alpha1.MachineInPlaceUpdateFailed: true, v1alpha1.MachineInPlaceUpdateSuccessful: true,
	} {
		if got := readUpdate(labelled(v1alpha1.SelectedForUpdate, candidate, selected)).drains(phase); got != want {
			t.Errorf("phase %q: %v, want %v", phase, got, want)
		}
		if readUpdate(labelled(v1alpha1.CandidateForUpdate, candidate)).drains(phase) {
			t.Errorf("phase %q: a candidate must not be drained", phase)
		}
	}
}

func TestInPlaceUpdate_Failed(t *testing.T) {
	for reason, want := range map[string]bool{
		"": false, v1alpha1.CandidateForUpdate: false, v1alpha1.SelectedForUpdate: false, v1alpha1.UpdateSuccessful: false,
		v1alpha1.DrainSuccessful: true, v1alpha1.ReadyForUpdate: true, v1alpha1.UpdateFailed: true,
	} {
		if got := readUpdate(labelled(reason)).failed(); got != want {
			t.Errorf("%q: %v, want %v", reason, got, want)
		}
		if readUpdate(labelled(reason, result+"="+successful)).failed() {
			t.Errorf("%q: failed = true although the agent reported success", reason)
		}
	}
}
