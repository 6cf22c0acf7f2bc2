package machine

import (
	"fmt"
	"slices"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/noderef"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// Limits of the conditions that are copied from a node to its Machine. An attacker who controls the guest can write
// any conditions.
const (
	maxConditions       = 32
	maxConditionField   = 256 // the type, the status and the reason, in bytes
	maxConditionMessage = 1024
	// A node may change conditionBurst times in a row. After that, one change is copied per conditionInterval.
	conditionBurst    = 10
	conditionInterval = 10 * time.Second
)

// bounded returns the conditions that are copied to a Machine. It prefers those that determine the health of the
// Machine, given the bad conditions, and keeps the order. The message of the last one shows how many are left out.
func bounded(conditions []corev1.NodeCondition, bad []string) []corev1.NodeCondition {
	others := maxConditions // how many conditions that do not matter are kept
	for i := range conditions {
		if matters(conditions[i].Type, bad) {
			others--
		}
	}
	var kept []corev1.NodeCondition
	for i := range conditions {
		important := matters(conditions[i].Type, bad)
		if len(kept) == maxConditions || !important && others <= 0 {
			continue
		}
		if !important {
			others--
		}
		kept = append(kept, short(conditions[i]))
	}
	if missing := len(conditions) - len(kept); missing > 0 {
		last := &kept[len(kept)-1]
		note := fmt.Sprintf("%s%d more conditions of the node are not copied", messages.Cut, missing)
		last.Message = messages.Shorten(last.Message, maxConditionMessage-len(note)) + note
	}
	return kept
}

// matters reports whether a condition determines what happens to the Machine.
func matters(kind corev1.NodeConditionType, bad []string) bool {
	switch kind {
	case corev1.NodeReady, v1alpha1.NodeTerminationCondition, v1alpha1.NodePreserved, v1alpha1.NodeInPlaceUpdate:
		return true
	}
	return slices.Contains(bad, string(kind))
}

// short returns a condition with shortened texts.
func short(condition corev1.NodeCondition) corev1.NodeCondition {
	condition.Type = corev1.NodeConditionType(messages.Shorten(string(condition.Type), maxConditionField))
	condition.Status = corev1.ConditionStatus(messages.Shorten(string(condition.Status), maxConditionField))
	condition.Reason = messages.Shorten(condition.Reason, maxConditionField)
	condition.Message = messages.Shorten(condition.Message, maxConditionMessage)
	return condition
}

// copyConditions copies the node's conditions to the Machine, unless only heartbeats differ. If the node changes too
// often, it does not copy them, and returns the time until it will.
func (s *scope) copyConditions(bad []string) time.Duration {
	next := bounded(s.node.Status.Conditions, bad)
	if !noderef.ConditionsDiffer(s.machine.Status.Conditions, next) {
		return 0
	}
	if s.memory.copies == nil {
		s.memory.copies = rate.NewLimiter(rate.Every(conditionInterval), conditionBurst)
	}
	reservation := s.memory.copies.ReserveN(s.now, 1)
	if delay := reservation.DelayFrom(s.now); delay > 0 {
		reservation.CancelAt(s.now)
		return delay
	}
	s.machine.Status.Conditions = next
	return 0
}
