package machine

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/reconcile/apierror"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

func beginTermination(_ context.Context, s *scope) flow.Result {
	if !controllerutil.ContainsFinalizer(s.machine, v1alpha1.FinalizerMCM) && !controllerutil.ContainsFinalizer(s.machine, v1alpha1.FinalizerLegacy) {
		return flow.Stop("the Machine has only finalizers of other controllers")
	}
	if s.machine.Status.CurrentStatus.Phase != v1alpha1.MachineTerminating {
		s.deletionWaits("", identifying)
		s.setPhase(v1alpha1.MachineTerminating)
	}
	return flow.Continue()
}

func removeFinalizer(ctx context.Context, s *scope) flow.Result {
	err := s.patch(ctx, func(machine *v1alpha1.Machine) {
		controllerutil.RemoveFinalizer(machine, v1alpha1.FinalizerMCM)
		controllerutil.RemoveFinalizer(machine, v1alpha1.FinalizerLegacy)
	})
	if apierror.IgnoreGone(err) != nil {
		return flow.Fail(err)
	}
	s.memory.released = s.machine.UID
	sentence := "There was no VM to delete"
	switch id := s.machine.Spec.ProviderID; {
	case s.ownedByOther != "":
		sentence = s.ownedByOther + "; it was not deleted"
	case id != "":
		sentence = fmt.Sprintf("VM %s and its node are gone", id)
	}
	s.events.add(corev1.EventTypeNormal, reasonDeleted, cause{}, sentence)
	return flow.Gone("the finalizer is removed")
}

// deletionStep is the next step of a deletion. If MCM takes over, it reads the marker from the description of the
// last operation; Millwright does not.
type deletionStep struct{ marker, name string }

var (
	identifying         = deletionStep{messages.Terminating, v1alpha1.StepIdentify}
	draining            = deletionStep{messages.Drain, v1alpha1.StepDrain}
	deletingAttachments = deletionStep{messages.DeleteAttachments, v1alpha1.StepDeleteAttachments}
	deletingInstance    = deletionStep{messages.DeleteVM, v1alpha1.StepDeleteInstance}
	deletingNode        = deletionStep{messages.DeleteNode, v1alpha1.StepDeleteNode}
)

// deletionWaits records the progress of a deletion and its next step, and reports whether that changed.
func (s *scope) deletionWaits(description string, next deletionStep) bool {
	return s.setOperation(v1alpha1.MachineOperationDelete, v1alpha1.MachineStateProcessing, strings.TrimSpace(description+" "+next.marker), "")
}

func (s *scope) instanceRemains(step deletionStep) {
	const sentence = "The provider still has the VM."
	if s.deletionWaits(sentence, step) {
		s.events.add(corev1.EventTypeNormal, reasonDeleting, cause{name: v1alpha1.CauseInstanceExists, step: step.name}, sentence)
	}
}

// deletionImpossible records why a step cannot be done. It adds an event only for the first of several failures in
// a row, even if the message changes.
func (s *scope) deletionImpossible(reason string, why cause, description string, step deletionStep) {
	if s.machine.Status.LastOperation.State != v1alpha1.MachineStateFailed {
		why.step = step.name
		s.events.add(corev1.EventTypeWarning, reason, why, description)
	}
	s.setOperation(v1alpha1.MachineOperationDelete, v1alpha1.MachineStateFailed, strings.TrimSpace(description+" "+step.marker), "")
}
