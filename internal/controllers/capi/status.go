package capi

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/internal/controllers/capi/failure"
	"github.com/millwright-dev/millwright/internal/controllers/capi/marks"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
	"github.com/millwright-dev/millwright/internal/lifecycle/ownership"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// set sets a condition, and reports whether that changed it. Its observedGeneration is that of
// the object when it changed last.
func (s *scope) set(kind string, value metav1.ConditionStatus, reason, message string) bool {
	next := metav1.Condition{
		Type: kind, Status: value, Reason: reason, Message: shorten(message), LastTransitionTime: metav1.NewTime(s.now),
	}
	if before := s.condition(kind); before != nil {
		next.ObservedGeneration = before.ObservedGeneration
	}
	if !meta.SetStatusCondition(&s.machine.Status.Conditions, next) {
		return false
	}
	s.condition(kind).ObservedGeneration = s.machine.Generation
	return true
}

func (s *scope) condition(kind string) *metav1.Condition {
	return meta.FindStatusCondition(s.machine.Status.Conditions, kind)
}

// longestMessage is how long a message may be, in bytes: a driver's may be of any length.
const longestMessage = 4096

func shorten(message string) string { return messages.Shorten(message, longestMessage) }

func (s *scope) ready() *metav1.Condition { return s.condition(infrav1.ConditionReady) }

// notReadyFor reports whether the object is not ready for one of these reasons.
func (s *scope) notReadyFor(reasons ...string) bool {
	ready := s.ready()
	return ready != nil && ready.Status != metav1.ConditionTrue && slices.Contains(reasons, ready.Reason)
}

// await says what has to come first. A VM that is there stays ready without it.
func (s *scope) await(reason, message string) flow.Result {
	if !marks.Established(s.machine) {
		s.set(infrav1.ConditionReady, metav1.ConditionFalse, reason, message)
	}
	return flow.Wait(0, message)
}

// refuse says what somebody has to change.
func (s *scope) refuse(reason, message string) flow.Result {
	if s.set(infrav1.ConditionReady, metav1.ConditionFalse, reason, message) {
		s.explain(corev1.EventTypeWarning, reason, message)
	}
	s.memory.refused, s.memory.code = true, codes.OK
	return flow.Wait(0, message)
}

// refuseOwned says that the VM is another object's.
func (s *scope) refuseOwned(providerID string, other ownership.Owner) flow.Result {
	message := ownedMessage(providerID, other)
	s.refuse(infrav1.ReasonProviderIDTaken, message)
	return flow.Wait(slowRetry, message)
}

func ownedMessage(providerID string, other ownership.Owner) string {
	return fmt.Sprintf("VM %s is that of %s already", providerID, other)
}

// adopt shows a VM that is there for the first time.
func (s *scope) adopt(found instance.Instance) {
	s.machine.Status.ProviderID = found.ProviderID
	s.machine.Status.FailureDomain = s.machine.Spec.FailureDomain
	s.machine.Status.Addresses = addressesOf(found.Addresses)
	s.provisioned()
}

// creating says that the driver is asked, unless it was in vain before: then that stays to
// be read until there is more to say.
func (s *scope) creating() {
	inVain := s.notReadyFor(infrav1.ReasonCreationFailed, infrav1.ReasonInsufficientCapacity, infrav1.ReasonInvalidSpec,
		infrav1.ReasonInstanceLost, infrav1.ReasonProviderIDTaken)
	if inVain || s.preparationFailed() {
		return
	}
	s.set(infrav1.ConditionReady, metav1.ConditionFalse, infrav1.ReasonCreating, "The driver makes the VM")
}

// preparationFailed reports whether the driver was about to be asked, but for the bootstrap
// data.
func (s *scope) preparationFailed() bool {
	_, begun := s.stored.Annotations[infrav1.AnnotationCreationBegun]
	return begun && s.notReadyFor(infrav1.ReasonWaitingForBootstrapData)
}

// provisioned tells both contracts that the VM is there.
func (s *scope) provisioned() {
	s.machine.Status.Ready = true
	s.machine.Status.Initialization = &infrav1.Initialization{Provisioned: new(true)}
	if s.set(infrav1.ConditionReady, metav1.ConditionTrue, infrav1.ReasonProvisioned, "") {
		s.explain(corev1.EventTypeNormal, infrav1.ReasonProvisioned, "VM "+s.machine.Status.ProviderID+" is there")
	}
}

// lost says that the VM is gone, without taking back that it was there.
func (s *scope) lost() {
	s.refuse(infrav1.ReasonInstanceLost, "The provider does not find VM "+s.machine.Spec.ProviderID)
}

// creationFailed says why there is no VM, and whether there can ever be one.
func (s *scope) creationFailed(failed *instance.Failure) {
	if failure.Hopeless(s.machine, failed) {
		s.machine.Status.FailureReason = new(infrav1.FailureInvalidConfiguration)
		s.machine.Status.FailureMessage = new(shorten(failure.Message(failed)))
	}
	s.driverFailed(failure.Reason(failed), failed)
}

// driverFailed says what the driver said. There is an event if it is a failure of another
// kind than before: the words may differ with each attempt.
func (s *scope) driverFailed(reason string, failed *instance.Failure) {
	code, ending := codes.OK, ""
	if failed.Method != instance.MethodPrepare {
		code, ending = failed.Code, fmt.Sprintf(" (%s)", failed.Code)
	}
	again := s.notReadyFor(reason) && (!s.memory.refused || s.memory.code == code)
	s.memory.refused, s.memory.code = true, code
	message := messages.Shorten(failure.Message(failed), longestMessage-len(ending)) + ending
	if s.set(infrav1.ConditionReady, metav1.ConditionFalse, reason, message) && !again {
		s.explain(corev1.EventTypeWarning, reason, message)
	}
}

func (s *scope) joined() {
	s.set(infrav1.ConditionNodeJoined, metav1.ConditionTrue, infrav1.ReasonJoined, "")
}

// notJoined says that there is no node yet.
func (s *scope) notJoined(overdue bool, timeout time.Duration) {
	if !overdue {
		s.set(infrav1.ConditionNodeJoined, metav1.ConditionFalse, infrav1.ReasonWaitingForNode, "The VM is not a node yet")
		return
	}
	message := fmt.Sprintf("The VM did not become a node within %v", timeout)
	if s.set(infrav1.ConditionNodeJoined, metav1.ConditionFalse, infrav1.ReasonJoinTimeout, message) {
		s.explain(corev1.EventTypeWarning, infrav1.ReasonJoinTimeout, message)
	}
}

// waitingForNodeSince is since when the VM could have become a node.
func (s *scope) waitingForNodeSince() time.Time {
	if ready := s.ready(); ready != nil {
		return ready.LastTransitionTime.Time
	}
	return s.now
}

// deleting says that the VM goes, unless that has failed: then that stays to be read.
func (s *scope) deleting() {
	if s.notReadyFor(infrav1.ReasonDeletionFailed) {
		return
	}
	s.set(infrav1.ConditionReady, metav1.ConditionFalse, infrav1.ReasonDeleting, "The VM is being deleted")
}

func (s *scope) deletionFailed(failed *instance.Failure) {
	s.driverFailed(infrav1.ReasonDeletionFailed, failed)
}

// undeletableBefore reports whether the object says already what its deletion waits for. The
// deletion began a new generation of the object, so what was said before does not count.
func (s *scope) undeletableBefore() bool {
	ready := s.ready()
	return ready != nil && ready.Status != metav1.ConditionTrue && ready.ObservedGeneration == s.machine.Generation &&
		!s.notReadyFor(infrav1.ReasonDeleting, infrav1.ReasonDeletionFailed)
}

// undeletable says what has to be there before the VM can be deleted.
func (s *scope) undeletable(reason, message string) flow.Result {
	s.refuse(reason, "The VM cannot be deleted: "+message)
	return flow.Wait(slowRetry, message)
}

// unfound says that the driver does not find a VM that it found before, when it was asked with
// something else.
func (s *scope) unfound() flow.Result {
	changed := "spec"
	if ref := s.machine.Spec.MachineClassRef; ref != nil {
		changed = fmt.Sprintf("MachineClass %q or spec", ref.Name)
	}
	return s.undeletable(infrav1.ReasonSpecChanged, changed+" was changed since the driver last found it, and now it does not; "+
		"set back what was changed, or make sure that the VM is gone and remove the finalizer "+infrav1.Finalizer)
}

// markPaused says whether the object is left alone.
func (s *scope) markPaused(paused bool) bool {
	if paused {
		s.set(infrav1.ConditionPaused, metav1.ConditionTrue, infrav1.ReasonPaused, "The Cluster or this object is paused")
	} else {
		s.set(infrav1.ConditionPaused, metav1.ConditionFalse, infrav1.ReasonNotPaused, "")
	}
	return paused
}

// addressesOf are the addresses that Cluster API knows the types of, each once.
func addressesOf(addresses []corev1.NodeAddress) []infrav1.MachineAddress {
	known := []corev1.NodeAddressType{corev1.NodeHostName, corev1.NodeInternalIP, corev1.NodeExternalIP, corev1.NodeInternalDNS, corev1.NodeExternalDNS}
	const longest = 256
	var made []infrav1.MachineAddress
	for _, a := range addresses {
		address := infrav1.MachineAddress{Type: a.Type, Address: a.Address}
		if slices.Contains(known, a.Type) && a.Address != "" && len(a.Address) <= longest && !slices.Contains(made, address) {
			made = append(made, address)
		}
	}
	return made
}
