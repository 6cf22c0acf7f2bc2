package machine

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/drain"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// deletionStep is what a deletion goes on with. MCM finds the marker in the description of the
// last operation, so that it can take over; we write it and never read it.
type deletionStep struct{ marker, name string }

var (
	identifying         = deletionStep{messages.Terminating, v1alpha1.StepIdentify}
	draining            = deletionStep{messages.Drain, v1alpha1.StepDrain}
	deletingAttachments = deletionStep{messages.DeleteAttachments, v1alpha1.StepDeleteAttachments}
	deletingInstance    = deletionStep{messages.DeleteVM, v1alpha1.StepDeleteInstance}
	deletingNode        = deletionStep{messages.DeleteNode, v1alpha1.StepDeleteNode}
)

// deletes records how a deletion goes, and with which step it goes on. It reports whether that
// is news.
func (s *scope) deletes(state v1alpha1.MachineState, description string, next deletionStep) bool {
	return s.operation(v1alpha1.MachineOperationDelete, state, strings.TrimSpace(description+" "+next.marker), "")
}

func (s *scope) deletionWaits(description string, next deletionStep) {
	s.deletes(v1alpha1.MachineStateProcessing, description, next)
}

// deletionImpossible: something is missing that the step needs. That it goes wrong is told
// once, however the words change.
func (s *scope) deletionImpossible(reason string, why cause, description string, step deletionStep) {
	if s.machine.Status.LastOperation.State != v1alpha1.MachineStateFailed {
		why.step = step.name
		s.explain(corev1.EventTypeWarning, reason, why, description)
	}
	s.deletes(v1alpha1.MachineStateFailed, description, step)
}

// progressEvery is how often a drain's progress is written at most: a node may have many
// pods, and each that goes would be a write.
const progressEvery = 5 * time.Second

// drainWaits: the drain waits for what the summary says.
func (s *scope) drainWaits(summary string) {
	last := s.machine.Status.LastOperation
	switch left := last.LastUpdateTime.Add(progressEvery).Sub(s.now); {
	case !s.memory.draining:
		// A node without pods goes without a word of its own.
		s.memory.draining = true
		s.explainNode(corev1.EventTypeNormal, reasonTerminating, cause{step: draining.name},
			fmt.Sprintf("Machine %s is being deleted: its pods leave, then its VM and this node are deleted", s.key()))
	case last.State == v1alpha1.MachineStateProcessing && left > 0:
		s.wakeWithin(left)
		return
	}
	s.deletionWaits("Draining, waiting for "+summary+".", draining)
}

// drainFailed: something goes wrong that is tried again.
func (s *scope) drainFailed(why, problem string) {
	s.deletionImpossible(reasonFailedDrain, cause{name: why}, fmt.Sprintf("Drain failed due to - %s. Will retry in next sync.", problem), draining)
}

// drained: the pods are gone. Nothing is written for a node on which there were none.
func (s *scope) drained() {
	if s.memory.draining {
		s.memory.draining = false
		s.explain(corev1.EventTypeNormal, reasonDrained, cause{step: deletingInstance.name}, fmt.Sprintf("The pods of node %s are gone", s.node.Name))
	}
	s.deletionWaits("Drain successful.", deletingInstance)
}

// forceDrained: the pods were given no choice, or are left.
func (s *scope) forceDrained(report drain.Report) {
	sentence := "Force Drain successful."
	if problem := report.Problem(); problem != "" {
		sentence = fmt.Sprintf("Drain failed due to - %s. However, since it's a force deletion shall continue deletion of VM.", problem)
	}
	if !s.deletes(v1alpha1.MachineStateProcessing, sentence, deletingAttachments) {
		return
	}
	told := fmt.Sprintf("The drain of node %s was forced: %s", s.node.Name, report.Force)
	if left := len(report.Left); left > 0 {
		told += fmt.Sprintf("; %d pods were left, %s among them", left, report.Left[0])
	}
	s.explainBoth(corev1.EventTypeWarning, reasonForcedDrain, cause{name: v1alpha1.CauseDrainForced, step: deletingAttachments.name}, told)
}

// deleted: nothing is left of the Machine but what others hold.
func (s *scope) deleted() {
	sentence := "There was no VM to delete"
	switch id := s.machine.Spec.ProviderID; {
	case s.ownedByOther != "":
		sentence = s.ownedByOther + "; it is left alone"
	case id != "":
		sentence = fmt.Sprintf("VM %s and its node are gone", id)
	}
	s.explain(corev1.EventTypeNormal, reasonDeleted, cause{}, sentence)
}
