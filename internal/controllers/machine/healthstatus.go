package machine

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/replacement"
	"github.com/millwright-dev/millwright/internal/pool/budget"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

func (s *scope) neverJoined(timeout time.Duration) {
	within := messages.Duration(timeout)
	if timeout%time.Minute == 0 { // MCM's wording
		within = fmt.Sprintf("%d minutes", timeout/time.Minute)
	}
	sentence := fmt.Sprintf("Machine %s "+messages.NeverJoined+" %s.", s.machine.Name, within)
	s.setOperation(s.machine.Status.LastOperation.Type, v1alpha1.MachineStateFailed, sentence, s.machine.Status.LastOperation.ErrorCode)
	s.setPhase(v1alpha1.MachineFailed)
	s.events.add(corev1.EventTypeWarning, reasonFailedJoin, cause{name: v1alpha1.CauseCreationTimeout}, sentence)
}

func (s *scope) joined() {
	kind, sentence := v1alpha1.MachineOperationHealthCheck, fmt.Sprintf("Machine %s successfully re-joined the cluster", s.machine.Name)
	if took, first := s.joinDuration(); first {
		kind, sentence = v1alpha1.MachineOperationCreate, fmt.Sprintf("Machine %s successfully joined the cluster in %s", s.machine.Name, messages.Duration(took))
	}
	s.setOperation(kind, v1alpha1.MachineStateSuccessful, sentence, "")
	s.setPhase(v1alpha1.MachineRunning)
	s.events.add(corev1.EventTypeNormal, reasonJoined, cause{}, sentence)
}

// joinDuration returns how long ago the Machine was created, and whether its node joins for the first time.
func (s *scope) joinDuration() (took time.Duration, first bool) {
	switch s.machine.Status.CurrentStatus.Phase {
	case "", v1alpha1.MachinePending, v1alpha1.MachineCrashLoopBackOff:
		return s.now.Sub(s.machine.CreationTimestamp.Time), true
	}
	return 0, false
}

func (s *scope) healthTimedOut(timeout time.Duration) {
	sentence := fmt.Sprintf("Machine %s health checks failing since last %v. Updating machine phase to Failed. Node Conditions: %s",
		s.machine.Name, timeout, describe(s.machine.Status.Conditions))
	s.setOperation(v1alpha1.MachineOperationHealthCheck, v1alpha1.MachineStateFailed, sentence, "")
	s.setPhase(v1alpha1.MachineFailed)
	s.events.addToBoth(s.node, corev1.EventTypeWarning, reasonFailedHealth, cause{name: v1alpha1.CauseHealthTimeout}, sentence)
}

func (s *scope) unknown(why, sentence string) {
	s.setOperation(v1alpha1.MachineOperationHealthCheck, v1alpha1.MachineStateProcessing, sentence, "")
	s.setPhase(v1alpha1.MachineUnknown)
	s.events.add(corev1.EventTypeWarning, reasonUnhealthy, cause{name: why}, sentence)
}

// replacementDelayed records that the health timeout has expired, and why the Machine is not replaced yet.
func (s *scope) replacementDelayed(timeout time.Duration, verdict budget.Verdict) {
	sentence := fmt.Sprintf("Machine %s health checks failing since last %v. It is not Failed yet because other machines of %q are being replaced.",
		s.machine.Name, timeout, replacement.PoolOf(s.machine))
	if verdict.Reason != "" {
		sentence = fmt.Sprintf("Machine %s health checks failing since last %v. It is not Failed yet: %s.", s.machine.Name, timeout, verdict.Reason)
	}
	if s.setOperation(v1alpha1.MachineOperationHealthCheck, v1alpha1.MachineStateProcessing, sentence, "") {
		s.events.add(corev1.EventTypeWarning, reasonDelayed, cause{name: cmp.Or(verdict.Cause, v1alpha1.CauseReplacementDelayed)}, sentence)
	}
}

// describe lists the node's conditions among those of a Machine, sorted by type. It omits times, so that heartbeats do
// not change the result.
func describe(conditions []corev1.NodeCondition) string {
	var parts []string
	for _, condition := range conditions {
		if condition.Type == v1alpha1.ConditionMachineJoined {
			continue
		}
		parts = append(parts, fmt.Sprintf("%s=%s (%s)", condition.Type, condition.Status, condition.Reason))
	}
	slices.Sort(parts)
	return strings.Join(parts, ", ")
}
