package machine

import (
	"fmt"
	"slices"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/noderef"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// Limits of the conditions that are copied from a node to its Machine. An attacker who controls the guest can write
// any conditions.
const (
	maxConditions        = 32
	maxForeignConditions = 16  // of maxConditions, those that other programs set on the Machine
	maxConditionField    = 256 // the type, the status and the reason, in bytes
	maxConditionMessage  = 1024
	// A node may change conditionBurst times in a row. After that, one change is copied per conditionInterval.
	conditionBurst    = 10
	conditionInterval = 10 * time.Second
)

// merged returns the conditions of a Machine: those of its node, and those that other programs have set on the Machine.
func merged(machine, node []corev1.NodeCondition, bad []string, now time.Time) []corev1.NodeCondition {
	node = slices.DeleteFunc(slices.Clone(node), func(c corev1.NodeCondition) bool { return c.Type == v1alpha1.ConditionMachineJoined })
	others := foreign(machine, node, bad)
	next := bounded(node, bad, maxConditions-len(others))
	for i := range next {
		if next[i].LastHeartbeatTime.IsZero() {
			next[i].LastHeartbeatTime = metav1.NewTime(now) // so that foreign recognizes it as a copy
		}
	}
	return append(next, others...)
}

// foreign returns the conditions of a Machine that were not copied from its node. Copies have a heartbeat time, also
// those that MCM made of conditions that a kubelet or another agent of the node sets. The guest cannot set
// MachineJoined, which is not copied.
func foreign(machine, node []corev1.NodeCondition, bad []string) []corev1.NodeCondition {
	var kept, joined []corev1.NodeCondition
	for i := range machine {
		switch kind := machine[i].Type; {
		case kind == v1alpha1.ConditionMachineJoined:
			joined = append(joined, short(machine[i]))
		case machine[i].LastHeartbeatTime.IsZero() && !matters(kind, bad) && noderef.Condition(node, kind) == nil:
			kept = append(kept, short(machine[i]))
		}
	}
	kept = append(joined, kept...)
	return kept[:min(len(kept), maxForeignConditions)]
}

// bounded returns at most limit of a node's conditions. It prefers those that determine the health of the Machine,
// given the bad conditions, and keeps the order. The message of the last one shows how many are left out.
func bounded(conditions []corev1.NodeCondition, bad []string, limit int) []corev1.NodeCondition {
	others := limit // how many conditions that do not matter are kept
	for i := range conditions {
		if matters(conditions[i].Type, bad) {
			others--
		}
	}
	var kept []corev1.NodeCondition
	for i := range conditions {
		important := matters(conditions[i].Type, bad)
		if len(kept) == limit || !important && others <= 0 {
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
// often, it does not copy them, and returns the time until it will. The Machine keeps the conditions that other
// programs have set on it.
func (s *scope) copyConditions(bad []string) time.Duration {
	next := merged(s.machine.Status.Conditions, s.node.Status.Conditions, bad, s.now)
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
