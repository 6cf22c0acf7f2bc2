package capi

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
	"github.com/millwright-dev/millwright/internal/controllers/capi/core"
	"github.com/millwright-dev/millwright/internal/controllers/capi/marks"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
	"github.com/millwright-dev/millwright/internal/lifecycle/ownership"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// maxMessage limits the length of a message, in bytes. Messages of drivers may have any length.
const maxMessage = 4096

// set sets a condition, and reports whether that changed it. The observedGeneration of the condition is the object's
// generation at its last change.
func (s *scope) set(kind string, value metav1.ConditionStatus, reason, message string) bool {
	conditions := &s.machine.Status.Conditions
	next := metav1.Condition{
		Type: kind, Status: value, Reason: reason, Message: messages.Shorten(message, maxMessage), LastTransitionTime: metav1.NewTime(s.now),
	}
	if before := meta.FindStatusCondition(*conditions, kind); before != nil {
		next.ObservedGeneration = before.ObservedGeneration
	}
	if !meta.SetStatusCondition(conditions, next) {
		return false
	}
	meta.FindStatusCondition(*conditions, kind).ObservedGeneration = s.machine.Generation
	return true
}

func (s *scope) ready() *metav1.Condition {
	return meta.FindStatusCondition(s.machine.Status.Conditions, infrav1.ConditionReady)
}

// notReadyFor reports whether the object is not ready for one of these reasons.
func (s *scope) notReadyFor(reasons ...string) bool {
	ready := s.ready()
	return ready != nil && ready.Status != metav1.ConditionTrue && slices.Contains(reasons, ready.Reason)
}

// await waits for something that is needed before the VM can be created. An existing VM stays ready without it.
func (s *scope) await(reason, message string) flow.Result {
	if !marks.Established(s.machine) {
		s.set(infrav1.ConditionReady, metav1.ConditionFalse, reason, message)
	}
	return flow.Wait(0, message)
}

// refuse reports what a user must change.
func (s *scope) refuse(reason, message string) flow.Result {
	if s.set(infrav1.ConditionReady, metav1.ConditionFalse, reason, message) {
		s.event(corev1.EventTypeWarning, reason, message)
	}
	s.memory.refused, s.memory.code = true, codes.OK
	return flow.Wait(0, message)
}

// refuseOwned reports that the VM belongs to another object.
func (s *scope) refuseOwned(providerID string, other ownership.Owner) flow.Result {
	message := ownedMessage(providerID, other)
	s.refuse(infrav1.ReasonProviderIDTaken, message)
	return flow.Wait(slowRetry, message)
}

func ownedMessage(providerID string, other ownership.Owner) string {
	return fmt.Sprintf("VM %s already belongs to %s", providerID, other)
}

// creating reports that the driver is creating the VM. If the status shows why earlier attempts failed, it is kept
// until there is a new result.
func (s *scope) creating() {
	failed := s.notReadyFor(infrav1.ReasonCreationFailed, infrav1.ReasonInsufficientCapacity, infrav1.ReasonInvalidSpec,
		infrav1.ReasonInstanceLost, infrav1.ReasonProviderIDTaken)
	begun := metav1.HasAnnotation(s.stored.ObjectMeta, infrav1.AnnotationCreationBegun)
	if failed || begun && s.notReadyFor(infrav1.ReasonWaitingForBootstrapData) {
		return
	}
	s.set(infrav1.ConditionReady, metav1.ConditionFalse, infrav1.ReasonCreating, "The driver is creating the VM")
}

// adopt reports a VM that was created or found.
func (s *scope) adopt(found instance.Instance) {
	s.machine.Status.ProviderID = found.ProviderID
	s.machine.Status.FailureDomain = cmp.Or(found.FailureDomain, s.machine.Spec.FailureDomain)
	s.machine.Status.Addresses = addressesOf(found.Addresses)
	s.provisioned()
}

// provisioned reports, for both contracts, that the VM exists.
func (s *scope) provisioned() {
	s.machine.Status.Ready = true
	s.machine.Status.Initialization = &infrav1.Initialization{Provisioned: new(true)}
	if s.set(infrav1.ConditionReady, metav1.ConditionTrue, infrav1.ReasonProvisioned, "") {
		s.event(corev1.EventTypeNormal, infrav1.ReasonProvisioned, "VM "+s.machine.Status.ProviderID+" exists")
	}
}

// lost reports that the VM no longer exists. status.ready stays true.
func (s *scope) lost() {
	s.refuse(infrav1.ReasonInstanceLost, "The provider cannot find VM "+s.machine.Spec.ProviderID)
}

// creationFailed reports why there is no VM, and whether the failure is permanent.
func (s *scope) creationFailed(failed *instance.Failure) {
	if terminal(s.machine, failed) {
		s.machine.Status.FailureReason = new(infrav1.FailureInvalidConfiguration)
		s.machine.Status.FailureMessage = new(messages.Shorten(failureMessage(failed), maxMessage))
	}
	s.driverFailed(failureReason(failed), failed)
}

// driverFailed reports an error of the driver. It sends an event only if the reason or code is new, because the
// message may differ with each call.
func (s *scope) driverFailed(reason string, failed *instance.Failure) {
	code, suffix := codes.OK, ""
	if failed.Method != instance.MethodPrepare {
		code, suffix = failed.Code, fmt.Sprintf(" (%s)", failed.Code)
	}
	repeated := s.notReadyFor(reason) && (!s.memory.refused || s.memory.code == code)
	s.memory.refused, s.memory.code = true, code
	message := messages.Shorten(failureMessage(failed), maxMessage-len(suffix)) + suffix
	if s.set(infrav1.ConditionReady, metav1.ConditionFalse, reason, message) && !repeated {
		s.event(corev1.EventTypeWarning, reason, message)
	}
}

// notJoined reports that there is no node yet.
func (s *scope) notJoined(overdue bool, timeout time.Duration) {
	if !overdue {
		s.set(infrav1.ConditionNodeJoined, metav1.ConditionFalse, infrav1.ReasonWaitingForNode, "The VM has not become a node yet")
		return
	}
	message := fmt.Sprintf("The VM did not become a node within %v", timeout)
	if s.set(infrav1.ConditionNodeJoined, metav1.ConditionFalse, infrav1.ReasonJoinTimeout, message) {
		s.event(corev1.EventTypeWarning, infrav1.ReasonJoinTimeout, message)
	}
}

// deleting reports that the VM is being deleted, unless the status shows why that failed.
func (s *scope) deleting() {
	if !s.notReadyFor(infrav1.ReasonDeletionFailed) {
		s.set(infrav1.ConditionReady, metav1.ConditionFalse, infrav1.ReasonDeleting, "The VM is being deleted")
	}
}

// undeletable reports what prevents the deletion of the VM.
func (s *scope) undeletable(reason, message string) flow.Result {
	s.refuse(reason, "The VM cannot be deleted: "+message)
	return flow.Wait(slowRetry, message)
}

// undeletableBefore reports whether the status already shows what prevents the deletion. Reports from before the
// deletion do not count; they have an earlier generation.
func (s *scope) undeletableBefore() bool {
	ready := s.ready()
	return ready != nil && ready.Status != metav1.ConditionTrue && ready.ObservedGeneration == s.machine.Generation &&
		!s.notReadyFor(infrav1.ReasonDeleting, infrav1.ReasonDeletionFailed)
}

func (s *scope) setPaused(paused bool) {
	if paused {
		s.set(infrav1.ConditionPaused, metav1.ConditionTrue, infrav1.ReasonPaused, "The Cluster or this object is paused")
		return
	}
	s.set(infrav1.ConditionPaused, metav1.ConditionFalse, infrav1.ReasonNotPaused, "")
}

// addressTypes are the address types that Cluster API allows, and maxAddress is its length limit.
var addressTypes = []corev1.NodeAddressType{corev1.NodeHostName, corev1.NodeInternalIP, corev1.NodeExternalIP, corev1.NodeInternalDNS, corev1.NodeExternalDNS}

const maxAddress = 256

// addressesOf returns the addresses that Cluster API allows, without duplicates.
func addressesOf(addresses []corev1.NodeAddress) []infrav1.MachineAddress {
	var allowed []infrav1.MachineAddress
	for _, a := range addresses {
		address := infrav1.MachineAddress{Type: a.Type, Address: a.Address}
		if slices.Contains(addressTypes, a.Type) && a.Address != "" && len(a.Address) <= maxAddress && !slices.Contains(allowed, address) {
			allowed = append(allowed, address)
		}
	}
	return allowed
}

// failureReason returns the reason of the condition Ready after a failed creation.
func failureReason(failed *instance.Failure) string {
	switch {
	case failed.Method == instance.MethodPrepare:
		return infrav1.ReasonWaitingForBootstrapData
	case failed.Code == codes.ResourceExhausted:
		return infrav1.ReasonInsufficientCapacity
	case refusesSpec(failed):
		return infrav1.ReasonInvalidSpec
	default:
		return infrav1.ReasonCreationFailed
	}
}

// refusesSpec reports whether the driver refuses the spec of the VM. If GetMachineStatus returns OutOfRange, that has
// another meaning.
func refusesSpec(failed *instance.Failure) bool {
	switch failed.Code {
	case codes.InvalidArgument:
		return failed.Method != instance.MethodPrepare
	case codes.OutOfRange:
		return failed.Method == instance.MethodCreate || failed.Method == instance.MethodInitialize
	}
	return false
}

// terminal reports whether only another spec of this object can help, so that Cluster API gives up the Machine. This
// is never the case if the driver got a class, a Secret or bootstrap data: it may have refused those, and users may
// repair them at any time. It is not the case either if the object was created from a template: its replacements
// would also fail, endlessly.
func terminal(machine *infrav1.MillwrightMachine, failed *instance.Failure) bool {
	return refusesSpec(failed) && failed.Method == instance.MethodStatus && marks.OwnSpecOnly(machine) &&
		machine.Annotations[core.AnnotationClonedFrom] == ""
}

// mayExist reports whether there may be a VM after a failure. There is none if the failure came before the creation,
// or if the driver refused the spec.
func mayExist(failed *instance.Failure) bool {
	return failed.Method != instance.MethodPrepare && failed.Method != instance.MethodStatus && !refusesSpec(failed)
}

// failureMessage returns the method with the driver's message.
func failureMessage(failed *instance.Failure) string {
	if failure, ok := status.FromError(failed.Err); ok {
		return fmt.Sprintf("%s: %s", failed.Method, failure.Message())
	}
	if failed.Method == instance.MethodPrepare {
		return failed.Err.Error()
	}
	return fmt.Sprintf("%s: %v", failed.Method, failed.Err)
}
