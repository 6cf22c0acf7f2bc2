package machine

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/drain"
)

// progressInterval is the minimum time between two updates of a drain's progress in the status.
const progressInterval = 5 * time.Second

func (s *scope) drainWaits(summary string) {
	last := s.machine.Status.LastOperation
	switch left := last.LastUpdateTime.Add(progressInterval).Sub(s.now); {
	case !s.memory.draining:
		s.memory.draining = true
		s.events.addToNode(s.node, corev1.EventTypeNormal, reasonTerminating, cause{step: draining.name},
			fmt.Sprintf("Machine %s is being deleted; evicting the Pods of this node before its VM is deleted", s.key()))
	case last.State == v1alpha1.MachineStateProcessing && left > 0:
		s.requeueWithin(left)
		return
	}
	s.deletionWaits("Draining, waiting for "+summary+".", draining)
}

func (s *scope) drainFailed(why, problem string) {
	s.deletionImpossible(reasonFailedDrain, cause{name: why}, drainFailure(problem), draining)
}

func drainFailure(problem string) string {
	return fmt.Sprintf("Drain failed due to - %s. Will retry in next sync.", problem)
}

// drained records that a drain succeeded without force. It sends no event if the node had no Pods to wait for.
func (s *scope) drained() {
	if s.memory.draining {
		s.memory.draining = false
		s.events.add(corev1.EventTypeNormal, reasonDrained, cause{step: deletingInstance.name}, podsGone(s.node))
	}
	s.deletionWaits("Drain successful.", deletingInstance)
}

func podsGone(node *corev1.Node) string {
	return fmt.Sprintf("Node %s is drained", node.Name)
}

// reportForcedPods sends a warning about Pods that were force-deleted although the drain itself is not forced.
func (s *scope) reportForcedPods(report drain.Report, why cause) {
	if pods := report.Forced(); pods != "" {
		s.events.addToBoth(s.node, corev1.EventTypeWarning, reasonForcedDrain, why, "Deleted Pods, ignoring disruption budgets: "+pods)
	}
}

func (s *scope) forceDrained(report drain.Report) {
	sentence := "Force Drain successful."
	if problem := report.Problem(); problem != "" {
		sentence = fmt.Sprintf("Drain failed due to - %s. However, since it's a force deletion shall continue deletion of VM.", problem)
	}
	if !s.deletionWaits(sentence, deletingAttachments) {
		return
	}
	message := drainWasForced(s.node, report.Force)
	if left := len(report.Left); left > 0 {
		message += fmt.Sprintf("; Pods remaining on the node: %d, including %s", left, report.Left[0])
	}
	s.events.addToBoth(s.node, corev1.EventTypeWarning, reasonForcedDrain, cause{name: v1alpha1.CauseDrainForced, step: deletingAttachments.name}, message)
}

func drainWasForced(node *corev1.Node, force drain.Force) string {
	return fmt.Sprintf("The drain of node %s was forced: %s", node.Name, force)
}
