package machine

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/internal/controllers/machine/passevents"
	"github.com/millwright-dev/millwright/internal/controllers/machine/preserve"
	"github.com/millwright-dev/millwright/internal/lifecycle/drain"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
	"github.com/millwright-dev/millwright/internal/lifecycle/ownership"
	"github.com/millwright-dev/millwright/internal/lifecycle/preservation"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// MCM's descriptions of a creation, which other programs know.
const (
	descriptionCreating = "Creating machine on cloud provider"
	descriptionCreated  = "Created machine on cloud provider"
)

var noAnswer = fmt.Sprintf(messages.NoAnswer+" for %v", instance.Silence)

func (c *Controller) writeStatus(ctx context.Context, s *scope, gone bool) error {
	if !gone && !equality.Semantic.DeepEqual(&s.stored.Status, &s.machine.Status) {
		// No more than is compared goes into a patch.
		before, after := &v1alpha1.Machine{Status: s.stored.Status}, &v1alpha1.Machine{Status: s.machine.Status}
		for _, lean := range []*v1alpha1.Machine{before, after} {
			lean.Namespace, lean.Name, lean.ResourceVersion = s.machine.Namespace, s.machine.Name, s.stored.ResourceVersion
		}
		if err := c.written.PatchStatus(ctx, c.Client, after, before); err != nil {
			return client.IgnoreNotFound(err)
		}
		s.machine = after
	}
	s.events.Send(s.machine, c.Events, c.NodeEvents)
	return nil
}

// longestDescription limits the bytes of a description, as drivers do not.
const longestDescription = 4096

// operation sets the last operation, and reports whether it changed.
func (s *scope) operation(kind v1alpha1.MachineOperationType, state v1alpha1.MachineState, description, errorCode string) bool {
	last := &s.machine.Status.LastOperation
	next := v1alpha1.LastOperation{
		Type: kind, State: state, Description: messages.Shorten(description, longestDescription), ErrorCode: errorCode,
		LastUpdateTime: last.LastUpdateTime,
	}
	if next == *last {
		return false
	}
	*last, last.LastUpdateTime = next, metav1.NewTime(s.now)
	return true
}

// phase sets the phase. The expiry of a preservation is kept unless the Machine terminates.
func (s *scope) phase(phase v1alpha1.MachinePhase) {
	current := &s.machine.Status.CurrentStatus
	if current.Phase == phase {
		return
	}
	*current = v1alpha1.CurrentStatus{Phase: phase, LastUpdateTime: metav1.NewTime(s.now), PreserveExpiryTime: current.PreserveExpiryTime}
	if phase == v1alpha1.MachineTerminating {
		current.PreserveExpiryTime = nil
	}
}

// clockSkew is how far the clocks of two hosts may be apart.
const clockSkew = time.Minute

// phaseBegan returns when the phase began. A time to come, by somebody's hand or the clock of another host, becomes
// now: a timeout that begins then would not end.
func (s *scope) phaseBegan() time.Time {
	current := &s.machine.Status.CurrentStatus
	if current.LastUpdateTime.After(s.now.Add(clockSkew)) {
		current.LastUpdateTime = metav1.NewTime(s.now)
	}
	return current.LastUpdateTime.Time
}

// preserved stores until when the Machine is preserved, and the node's condition about that.
func (s *scope) preserved(done preserve.Outcome) {
	current := &s.machine.Status.CurrentStatus
	before := current.PreserveExpiryTime
	if done.Action != preservation.None && !before.Equal(done.Expiry) {
		current.PreserveExpiryTime, current.LastUpdateTime = done.Expiry, metav1.NewTime(s.now)
	}
	s.machine.Status.Conditions = preserve.Conditions(s.machine.Status.Conditions, done.Node)
	s.sayPreserved(done, before != nil)
}

// instanceExists has a new Machine wait for its node, if there will be one.
func (s *scope) instanceExists(nodeExpected bool) {
	if ownership.Settled(s.machine) {
		return
	}
	if !nodeExpected {
		s.operation(v1alpha1.MachineOperationCreate, v1alpha1.MachineStateSuccessful, descriptionCreated, "")
		s.phase(v1alpha1.MachineAvailable)
		return
	}
	s.operation(v1alpha1.MachineOperationCreate, v1alpha1.MachineStateProcessing, descriptionCreating, "")
	s.phase(v1alpha1.MachinePending)
	s.machine.Status.CurrentStatus.TimeoutActive = true
}

func (s *scope) instanceLost() {
	sentence := fmt.Sprintf("VM %s "+messages.VMLost, s.machine.Spec.ProviderID)
	if s.machine.Status.CurrentStatus.Phase != v1alpha1.MachineUnknown {
		s.events.Add(corev1.EventTypeWarning, reasonUnhealthy, passevents.Cause{Name: v1alpha1.CauseInstanceLost}, sentence)
	}
	s.operation(v1alpha1.MachineOperationHealthCheck, v1alpha1.MachineStateProcessing, sentence, "")
	s.phase(v1alpha1.MachineUnknown)
}

// driverFailed records a failed call. Autoscalers read the code. left is the time that the Machine
// still has.
func (s *scope) driverFailed(failure *instance.Failure, left time.Duration) {
	description := messages.Provider + failure.Err.Error()
	switch failure.Method {
	case instance.MethodPrepare:
		s.failedToCreate(passevents.Cause{Name: v1alpha1.CauseBootstrapFailed}, failure.Err.Error(), left)
		return
	case instance.MethodInitialize:
		description = fmt.Sprintf(messages.ProviderError+"%v. "+messages.Initialize, failure.Err)
	}
	s.failedToCreate(passevents.OfDriver(failure), description, left)
}

// failedToCreate records why nothing was created. A driver's failure makes an event only if its code
// changed, as its message may differ with each attempt.
func (s *scope) failedToCreate(why passevents.Cause, description string, left time.Duration) {
	before := s.machine.Status.LastOperation
	news := s.operation(v1alpha1.MachineOperationCreate, v1alpha1.MachineStateFailed, description, why.Code)
	if before.State != v1alpha1.MachineStateFailed || before.ErrorCode != why.Code || why.Code == "" && news {
		s.events.Add(corev1.EventTypeWarning, reasonFailedCreate, why, description)
	}
	if left > 0 {
		s.phase(v1alpha1.MachineCrashLoopBackOff)
	} else {
		s.phase(v1alpha1.MachineFailed)
	}
}

// note stores the driver's LastKnownState unless it is nil.
func (s *scope) note(lastKnownState *string) {
	if lastKnownState != nil {
		s.machine.Status.LastKnownState = *lastKnownState
	}
}

// forgetState clears the driver's LastKnownState after a creation that failed for good: it is obsolete.
func (s *scope) forgetState(failure *instance.Failure) {
	if failure.Method == instance.MethodPrepare {
		return
	}
	switch failure.Code {
	case codes.ResourceExhausted, codes.Unknown, codes.DeadlineExceeded, codes.Aborted, codes.Unavailable:
		// the creation may be in progress
	default:
		s.machine.Status.LastKnownState = ""
	}
}

func (s *scope) neverJoined(timeout time.Duration) {
	within := messages.Duration(timeout)
	if timeout%time.Minute == 0 { // as MCM says it
		within = fmt.Sprintf("%d minutes", timeout/time.Minute)
	}
	sentence := fmt.Sprintf("Machine %s "+messages.NeverJoined+" %s.", s.machine.Name, within)
	s.operation(s.machine.Status.LastOperation.Type, v1alpha1.MachineStateFailed, sentence, s.machine.Status.LastOperation.ErrorCode)
	s.phase(v1alpha1.MachineFailed)
	s.events.Add(corev1.EventTypeWarning, reasonFailedJoin, passevents.Cause{Name: v1alpha1.CauseCreationTimeout}, sentence)
}

func (s *scope) joined() {
	kind, sentence := v1alpha1.MachineOperationHealthCheck, fmt.Sprintf("Machine %s successfully re-joined the cluster", s.machine.Name)
	if took, first := s.joinDuration(); first {
		kind, sentence = v1alpha1.MachineOperationCreate, fmt.Sprintf("Machine %s successfully joined the cluster in %s", s.machine.Name, messages.Duration(took))
	}
	s.operation(kind, v1alpha1.MachineStateSuccessful, sentence, "")
	s.phase(v1alpha1.MachineRunning)
	s.events.Add(corev1.EventTypeNormal, reasonJoined, passevents.Cause{}, sentence)
}

// joinDuration is how long ago the Machine was created, and whether its node joins for the first time.
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
	s.operation(v1alpha1.MachineOperationHealthCheck, v1alpha1.MachineStateFailed, sentence, "")
	s.phase(v1alpha1.MachineFailed)
	s.events.AddToBoth(s.node, corev1.EventTypeWarning, reasonFailedHealth, passevents.Cause{Name: v1alpha1.CauseHealthTimeout}, sentence)
}

func (s *scope) unknown(why, sentence string) {
	s.operation(v1alpha1.MachineOperationHealthCheck, v1alpha1.MachineStateProcessing, sentence, "")
	s.phase(v1alpha1.MachineUnknown)
	s.events.Add(corev1.EventTypeWarning, reasonUnhealthy, passevents.Cause{Name: why}, sentence)
}

// describe lists conditions by type, without times, so that heartbeats change nothing.
func describe(conditions []corev1.NodeCondition) string {
	var parts []string
	for _, condition := range conditions {
		parts = append(parts, fmt.Sprintf("%s=%s (%s)", condition.Type, condition.Status, condition.Reason))
	}
	slices.Sort(parts)
	return strings.Join(parts, ", ")
}

// mostAddresses is how many addresses a Machine has before those that it had are dropped: a driver may name
// others each time.
const mostAddresses = 128

func mergeAddresses(known []corev1.NodeAddress, found instance.Instance) []corev1.NodeAddress {
	if len(known)+len(found.Addresses) > mostAddresses {
		known = nil
	}
	all := slices.Concat(known, found.Addresses)
	if found.NodeName != "" {
		all = append(all, corev1.NodeAddress{Type: corev1.NodeHostName, Address: found.NodeName})
	}
	slices.SortFunc(all, func(a, b corev1.NodeAddress) int {
		return cmp.Or(cmp.Compare(a.Type, b.Type), cmp.Compare(a.Address, b.Address))
	})
	return slices.Compact(all)
}

// deletionStep is the next step of a deletion. MCM, which may take over, reads the marker in the
// description of the last operation; we do not.
type deletionStep struct{ marker, name string }

var (
	identifying         = deletionStep{messages.Terminating, v1alpha1.StepIdentify}
	draining            = deletionStep{messages.Drain, v1alpha1.StepDrain}
	deletingAttachments = deletionStep{messages.DeleteAttachments, v1alpha1.StepDeleteAttachments}
	deletingInstance    = deletionStep{messages.DeleteVM, v1alpha1.StepDeleteInstance}
	deletingNode        = deletionStep{messages.DeleteNode, v1alpha1.StepDeleteNode}
)

// deletionWaits records how a deletion goes, and its next step, and reports whether that changed.
func (s *scope) deletionWaits(description string, next deletionStep) bool {
	return s.operation(v1alpha1.MachineOperationDelete, v1alpha1.MachineStateProcessing, strings.TrimSpace(description+" "+next.marker), "")
}

func (s *scope) instanceRemains(step deletionStep) {
	const sentence = "The provider still has the VM."
	if s.deletionWaits(sentence, step) {
		s.events.Add(corev1.EventTypeNormal, reasonDeleting, passevents.Cause{Name: v1alpha1.CauseInstanceExists, Step: step.name}, sentence)
	}
}

// deletionImpossible records why a step cannot be done. It sends one event, whatever later messages
// are.
func (s *scope) deletionImpossible(reason string, why passevents.Cause, description string, step deletionStep) {
	if s.machine.Status.LastOperation.State != v1alpha1.MachineStateFailed {
		why.Step = step.name
		s.events.Add(corev1.EventTypeWarning, reason, why, description)
	}
	s.operation(v1alpha1.MachineOperationDelete, v1alpha1.MachineStateFailed, strings.TrimSpace(description+" "+step.marker), "")
}

const progressEvery = 5 * time.Second

func (s *scope) drainWaits(summary string) {
	last := s.machine.Status.LastOperation
	switch left := last.LastUpdateTime.Add(progressEvery).Sub(s.now); {
	case !s.memory.draining:
		s.memory.draining = true
		s.events.AddToNode(s.node, corev1.EventTypeNormal, reasonTerminating, passevents.Cause{Step: draining.name},
			fmt.Sprintf("Machine %s is being deleted: its pods leave, then its VM and this node are deleted", s.key()))
	case last.State == v1alpha1.MachineStateProcessing && left > 0:
		s.wakeWithin(left)
		return
	}
	s.deletionWaits("Draining, waiting for "+summary+".", draining)
}

func (s *scope) drainFailed(why, problem string) {
	s.deletionImpossible(reasonFailedDrain, passevents.Cause{Name: why}, fmt.Sprintf("Drain failed due to - %s. Will retry in next sync.", problem), draining)
}

func (s *scope) forceDrained(report drain.Report) {
	sentence := "Force Drain successful."
	if problem := report.Problem(); problem != "" {
		sentence = fmt.Sprintf("Drain failed due to - %s. However, since it's a force deletion shall continue deletion of VM.", problem)
	}
	if !s.deletionWaits(sentence, deletingAttachments) {
		return
	}
	message := fmt.Sprintf("The drain of node %s was forced: %s", s.node.Name, report.Force)
	if left := len(report.Left); left > 0 {
		message += fmt.Sprintf("; %d pods were left, %s among them", left, report.Left[0])
	}
	s.events.AddToBoth(s.node, corev1.EventTypeWarning, reasonForcedDrain, passevents.Cause{Name: v1alpha1.CauseDrainForced, Step: deletingAttachments.name}, message)
}
