package machine

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/noderef"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// manyConditions returns conditions as an attacker who controls the guest can write them.
func manyConditions(count, length int) []corev1.NodeCondition {
	var conditions []corev1.NodeCondition
	for i := range count {
		text := strings.Repeat("x", length)
		conditions = append(conditions, corev1.NodeCondition{
			Type: corev1.NodeConditionType(fmt.Sprintf("Type%d", i)), Status: "True", Reason: text, Message: text,
		})
	}
	return conditions
}

// TestConditions_AreBounded checks that the conditions of a node are copied to the status of its Machine only up to a
// limit, that the limit is marked, and that the health of the Machine still follows the node.
func TestConditions_AreBounded(t *testing.T) {
	h := newHarness(t)
	h.running()
	h.join(append(manyConditions(1000, 2_000), condition("DiskPressure", "True"), ready)...)
	h.Settle()
	status := h.machine().Status
	if text, _ := json.Marshal(status); len(text) > 64<<10 {
		t.Errorf("the status has %d bytes", len(text))
	}
	if len(status.Conditions) != maxConditions || noderef.Condition(status.Conditions, "Ready") == nil || noderef.Condition(status.Conditions, "DiskPressure") == nil {
		t.Errorf("%d conditions, want %d, with those that matter", len(status.Conditions), maxConditions)
	}
	first, last := status.Conditions[0], status.Conditions[maxConditions-1]
	if !strings.Contains(first.Message, messages.Cut) || !strings.Contains(last.Message, "970 more conditions") {
		t.Errorf("the limits are not marked: %q, %q", first.Message, last.Message)
	}
	if status.CurrentStatus.Phase != v1alpha1.MachineUnknown {
		t.Errorf("phase %q with a bad condition, want Unknown", status.CurrentStatus.Phase)
	}
	h.Writes = nil
	h.join(append(manyConditions(1000, 2_001), condition("DiskPressure", "True"), ready)...)
	if h.Settle(); len(h.TakeWrites()) > 0 {
		t.Error("a change that is not copied leads to a write")
	}
}

// TestConditions_ShortAreCopiedUnchanged checks that usual conditions are copied as MCM copies them.
func TestConditions_ShortAreCopiedUnchanged(t *testing.T) {
	conditions := append(manyConditions(maxConditions-1, 100), ready)
	if got := bounded(conditions, nil, maxConditions); !slices.Equal(got, conditions) {
		t.Errorf("%d conditions become %v", len(conditions), got)
	}
}

// TestConditions_WritesAreLimited checks that a node whose conditions change all the time does not lead to a write for
// each change, and that the last change is copied in the end.
func TestConditions_WritesAreLimited(t *testing.T) {
	h := newHarness(t)
	h.running()
	const changes = 1200 // 20 a second
	for i := range changes {
		changed := ready
		changed.Reason = fmt.Sprintf("Reason%d", i)
		h.join(changed)
		h.Pass()
		h.Clock.Step(50 * time.Millisecond)
	}
	limit := conditionBurst + int(changes*50*time.Millisecond/conditionInterval) + 1
	if writes := len(h.TakeWrites()); writes > limit || writes < conditionBurst {
		t.Errorf("%d writes for %d changes in a minute, want at most %d", writes, changes, limit)
	}
	h.Clock.Step(conditionInterval)
	h.Settle()
	if got := h.machine().Status.Conditions[0].Reason; got != fmt.Sprintf("Reason%d", changes-1) {
		t.Errorf("the reason is %q in the end", got)
	}
}

// TestConditions_PreservedIsBounded checks the condition that is copied on another path.
func TestConditions_PreservedIsBounded(t *testing.T) {
	node := &corev1.Node{}
	node.Status.Conditions = []corev1.NodeCondition{{Type: v1alpha1.NodePreserved, Reason: strings.Repeat("x", 1<<20), Message: strings.Repeat("y", 1<<20)}}
	got := withPreserved(nil, node)
	if len(got) != 1 || len(got[0].Reason) > maxConditionField || len(got[0].Message) > maxConditionMessage {
		t.Errorf("%d conditions; the reason has %d bytes and the message %d", len(got), len(got[0].Reason), len(got[0].Message))
	}
	if again := withPreserved(got, node); &again[0] != &got[0] {
		t.Error("the condition is copied again although it did not change")
	}
}
