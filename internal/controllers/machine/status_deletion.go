package machine

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/drain"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
)

func (s *scope) terminating() {
	s.operation(v1alpha1.MachineOperationDelete, v1alpha1.MachineStateProcessing, sayTerminating, "")
	s.phase(v1alpha1.MachineTerminating)
}

// deletes records how a deletion goes, and with which step it goes on.
func (s *scope) deletes(state v1alpha1.MachineState, sentence, marker string) bool {
	return s.operation(v1alpha1.MachineOperationDelete, state, strings.TrimSpace(sentence+" "+marker), "")
}

func (s *scope) deletionWaits(sentence, marker string) {
	s.deletes(v1alpha1.MachineStateProcessing, sentence, marker)
}

// deletionImpossible: something is missing that the step of the marker needs. That it goes
// wrong is told once, however the words change.
func (s *scope) deletionImpossible(reason, sentence, marker string) {
	if s.machine.Status.LastOperation.State != v1alpha1.MachineStateFailed {
		s.explain(corev1.EventTypeWarning, reason, sentence)
	}
	s.deletes(v1alpha1.MachineStateFailed, sentence, marker)
}

// deletionFailed: a call to the driver did. MCM sets no code on deletions, nor do we.
func (s *scope) deletionFailed(failure *instance.Failure, marker string) {
	s.deletionImpossible(reasonFailedDelete, fmt.Sprintf("%s%v.", sayProvider, failure.Err), marker)
}

// progressEvery is how often a drain's progress is written at most: a node may have many
// pods, and each that goes would be a write.
const progressEvery = 5 * time.Second

// draining: the drain waits for what the summary says.
func (s *scope) draining(summary string) {
	last, sentence := s.machine.Status.LastOperation, "Draining, waiting for "+summary+"."
	switch began := strings.HasPrefix(last.Description, "Draining, "); {
	case !began:
		// A node without pods goes without a word of its own.
		s.explainNode(corev1.EventTypeNormal, reasonTerminating, fmt.Sprintf("Machine %s is being deleted: its pods leave, then its VM and this node are deleted", s.key()))
	case last.Description != sentence+" "+sayDrain:
		if left := last.LastUpdateTime.Add(progressEvery).Sub(s.now); left > 0 {
			s.wakeWithin(left)
			return
		}
	}
	s.deletionWaits(sentence, sayDrain)
}

// drainFailed: something goes wrong that is tried again.
func (s *scope) drainFailed(problem string) {
	s.deletionImpossible(reasonFailedDrain, fmt.Sprintf("Drain failed due to - %s. Will retry in next sync.", problem), sayDrain)
}

// evictionsGivenUp: pods of a drain that is not forced itself are deleted by force.
func (s *scope) evictionsGivenUp(report drain.Report) {
	if pods := report.Forced(); pods != "" {
		s.explainBoth(corev1.EventTypeWarning, reasonForcedDrain, "Deleted without regard to pod disruption budgets: "+pods)
	}
}

// drained: the pods are gone. Nothing is written for a node on which there were none.
func (s *scope) drained() {
	if strings.Contains(s.machine.Status.LastOperation.Description, sayDrain) {
		s.explain(corev1.EventTypeNormal, reasonDrained, fmt.Sprintf("The pods of node %s are gone", s.node.Name))
	}
	s.deletionWaits("Drain successful.", sayDeletingVM)
}

// forceDrained: the pods were given no choice, or are left.
func (s *scope) forceDrained(report drain.Report) {
	sentence := "Force Drain successful."
	if problem := report.Problem(); problem != "" {
		sentence = fmt.Sprintf("Drain failed due to - %s. However, since it's a force deletion shall continue deletion of VM.", problem)
	}
	if !s.deletes(v1alpha1.MachineStateProcessing, sentence, sayAttachments) {
		return
	}
	told := fmt.Sprintf("The drain of node %s was forced: %s", s.node.Name, report.Force)
	if left := len(report.Left); left > 0 {
		told += fmt.Sprintf("; %d pods were left, %s among them", left, report.Left[0])
	}
	s.explainBoth(corev1.EventTypeWarning, reasonForcedDrain, told)
}

// deleted: nothing is left of the Machine but what others hold.
func (s *scope) deleted() {
	sentence := "There was no VM to delete"
	switch id := s.machine.Spec.ProviderID; {
	case s.foreign != "":
		sentence = s.foreign + "; it is left alone"
	case id != "":
		sentence = fmt.Sprintf("VM %s and its node are gone", id)
	}
	s.explain(corev1.EventTypeNormal, reasonDeleted, sentence)
}
