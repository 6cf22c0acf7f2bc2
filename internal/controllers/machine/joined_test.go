package machine

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/noderef"
)

// notJoined is the condition by which MCM records that the node of a Machine has not joined in time.
var notJoined = corev1.NodeCondition{
	Type: v1alpha1.ConditionMachineJoined, Status: corev1.ConditionFalse, Reason: v1alpha1.FailedJoin, Message: "not joined in 20m",
	LastHeartbeatTime: metav1.Unix(1_700_000_000, 0), LastTransitionTime: metav1.Unix(1_700_000_000, 0),
}

// ofOthers is a condition that a program other than a manager of Machines sets on them.
var ofOthers = condition("example.com/Audited", "True")

// setConditions sets conditions on the Machine, as another program does.
func (h *harness) setConditions(conditions ...corev1.NodeCondition) {
	h.Helper()
	machine := h.machine()
	machine.Status.Conditions = conditions
	if err := h.control.Status().Update(h.Context(), machine); err != nil {
		h.Fatal(err)
	}
}

// TestConditions_OfOthersDoNotMeanJoined checks that the bootstrap token of a Machine is revoked when its node joins, or
// when the Machine is deleted before that, although the Machine had conditions before.
func TestConditions_OfOthersDoNotMeanJoined(t *testing.T) {
	for name, finish := range map[string]func(h *harness){
		"joins":      func(h *harness) { h.join(ready) },
		"is deleted": func(h *harness) { h.delete() },
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			h.declare()
			h.Settle()
			h.setConditions(notJoined, ofOthers)
			h.Settle()
			if len(h.tokens()) != 1 {
				t.Fatalf("%d tokens before the node joins, want 1", len(h.tokens()))
			}
			finish(h)
			h.Settle()
			if len(h.tokens()) != 0 {
				t.Error("the token was not revoked")
			}
		})
	}
}

// TestConditions_OfOthersSurvive checks that a Machine keeps the conditions that other programs have set on it when the
// conditions of its node change, and that only conditions that came from the node disappear with it. Keeping them
// takes no writes.
func TestConditions_OfOthersSurvive(t *testing.T) {
	h := newHarness(t)
	h.declare()
	h.Settle()
	h.setConditions(notJoined, ofOthers)
	spoofed := condition(string(v1alpha1.ConditionMachineJoined), "True")
	h.join(ready, condition("FromNode", "False"), spoofed)
	h.Settle()
	check := func(when string, want ...corev1.NodeConditionType) {
		t.Helper()
		conditions := h.machine().Status.Conditions
		var got []corev1.NodeConditionType
		for _, c := range conditions {
			got = append(got, c.Type)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: conditions %q, want %q", when, got, want)
		}
		if joined := noderef.Condition(conditions, v1alpha1.ConditionMachineJoined); joined == nil || joined.Status != corev1.ConditionFalse || joined.Message != notJoined.Message {
			t.Errorf("%s: condition %+v, want that of MCM", when, joined)
		}
	}
	check("joined", "Ready", "FromNode", notJoined.Type, ofOthers.Type)

	h.Writes = nil
	h.restart()
	h.Settle()
	if writes := h.TakeWrites(); len(writes) > 0 {
		t.Errorf("writes %q although no condition changed", writes)
	}
	h.join(ready)
	h.Settle()
	check("a condition of the node is gone", "Ready", notJoined.Type, ofOthers.Type)
	h.join(ready, condition(string(ofOthers.Type), "False"))
	h.Settle()
	h.join(ready)
	h.Settle()
	check("the node had a condition of that type", "Ready", notJoined.Type)
}

// TestConditions_OfOthersAreBounded checks that conditions of other programs do not displace those that determine the
// health of the Machine, and that neither side exceeds the limits.
func TestConditions_OfOthersAreBounded(t *testing.T) {
	now := time.Now()
	machine := append(manyConditions(100, 2_000), notJoined)
	node := manyConditions(100, 2_000)
	for i := range node {
		node[i].Type += "OfNode"
	}
	got := merged(machine, append(node, ready, condition("DiskPressure", "False")), noderef.DefaultBadConditions, now)
	if len(got) != maxConditions {
		t.Errorf("%d conditions, want %d", len(got), maxConditions)
	}
	for _, kind := range []corev1.NodeConditionType{"Ready", "DiskPressure", "Type0OfNode", v1alpha1.ConditionMachineJoined, "Type0"} {
		if noderef.Condition(got, kind) == nil {
			t.Errorf("no condition %s", kind)
		}
	}
	for _, c := range got {
		if len(c.Reason) > maxConditionField || len(c.Message) > maxConditionMessage {
			t.Errorf("condition %s has a reason of %d bytes and a message of %d", c.Type, len(c.Reason), len(c.Message))
		}
	}
	if again := merged(got, append(node, ready, condition("DiskPressure", "False")), noderef.DefaultBadConditions, now); noderef.ConditionsDiffer(got, again) {
		t.Errorf("the same conditions become %v", again)
	}
}
