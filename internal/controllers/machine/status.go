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
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
	"github.com/millwright-dev/millwright/internal/lifecycle/noderef"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// The sentences of MCM, so that either system can take over from the other, and other
// programs find what they look for. They are written and never read.
const (
	sayCreating    = "Creating machine on cloud provider"
	sayCreated     = "Created machine on cloud provider"
	sayProvider    = messages.Provider
	sayTerminating = messages.Terminating
	// The markers say which step of a deletion is next.
	sayDrain       = messages.Drain
	sayAttachments = messages.DeleteAttachments
	sayDeletingVM  = messages.DeleteVM
	sayDeleteNode  = messages.DeleteNode
)

// sayNoAnswer is what is said of a driver that ignores the deadlines of its calls.
var sayNoAnswer = fmt.Sprintf(messages.NoAnswer+" for %v", silence)

// Reasons of the events on Machines and their nodes.
const (
	reasonJoined       = "Joined"
	reasonUnhealthy    = "Unhealthy"
	reasonFailedCreate = "FailedCreate"
	reasonFailedDelete = "FailedDelete"
	reasonFailedJoin   = "FailedJoin"
	reasonDeleted      = "Deleted"
	reasonNodeDeleted  = "NodeDeleted"
	reasonTerminating  = "MachineTerminating"
	reasonFailedHealth = "FailedHealth"
	reasonDelayed      = "ReplacementDelayed"
	reasonForcedDrain  = "ForcedDrain"
	reasonFailedDrain  = "FailedDrain"
	reasonDrained      = "Drained"
	reasonOtherVM      = "NodeOfOtherVM"
	reasonOtherMachine = "NodeOfOtherMachine"

	reasonUnfit           = "InvalidNodeTemplate"
	reasonTemplateRefused = "NodeTemplateRefused"
	reasonCapacityRefused = "VirtualCapacityRefused"
)

// writeStatus writes the status of the pass, if it changed, and then says what happened.
func (c *Controller) writeStatus(ctx context.Context, s *scope) error {
	if !s.gone && !equality.Semantic.DeepEqual(&s.stored.Status, &s.machine.Status) {
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
	for _, e := range s.events {
		message := messages.Shorten(e.message, longestEvent)
		switch {
		case e.node == nil:
			c.Events.Event(s.machine, e.kind, e.reason, message)
		case c.NodeEvents != nil:
			c.NodeEvents.Event(e.node, e.kind, e.reason, message)
		}
		if e.sent != nil {
			e.sent()
		}
	}
	return nil
}

// longestDescription and longestEvent are how many bytes of a text are stored: a driver may fail
// with any.
const (
	longestDescription = 4096
	longestEvent       = 1024
)

// operation records what was last done, and reports whether that is news.
func (s *scope) operation(kind v1alpha1.MachineOperationType, state v1alpha1.MachineState, description, errorCode string) bool {
	description = messages.Shorten(description, longestDescription)
	last := &s.machine.Status.LastOperation
	if last.Type == kind && last.State == state && last.Description == description && last.ErrorCode == errorCode {
		return false
	}
	*last = v1alpha1.LastOperation{
		Type: kind, State: state, Description: description, ErrorCode: errorCode,
		LastUpdateTime: metav1.NewTime(s.now),
	}
	return true
}

// phase records where the Machine stands. How long it is preserved is kept unless the
// Machine is on its way out.
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

// instanceExists: a new Machine waits for its node from now on, if there will be one.
func (s *scope) instanceExists(nodeExpected bool) {
	if !unsettled(s.machine) {
		return
	}
	if !nodeExpected {
		s.operation(v1alpha1.MachineOperationCreate, v1alpha1.MachineStateSuccessful, sayCreated, "")
		s.phase(v1alpha1.MachineAvailable)
		return
	}
	s.operation(v1alpha1.MachineOperationCreate, v1alpha1.MachineStateProcessing, sayCreating, "")
	s.phase(v1alpha1.MachinePending)
	s.machine.Status.CurrentStatus.TimeoutActive = true
}

func (s *scope) instanceLost() {
	sentence := fmt.Sprintf("VM %s "+messages.VMLost, s.machine.Spec.ProviderID)
	if s.machine.Status.CurrentStatus.Phase != v1alpha1.MachineUnknown {
		s.explain(corev1.EventTypeWarning, reasonUnhealthy, sentence)
	}
	s.operation(v1alpha1.MachineOperationHealthCheck, v1alpha1.MachineStateProcessing, sentence, "")
	s.phase(v1alpha1.MachineUnknown)
}

// notCreated: something is missing that a creation needs. left is the time that the
// Machine still has.
func (s *scope) notCreated(sentence string, left time.Duration) {
	s.failedToCreate(sentence, "", left)
}

// driverFailed: a call to the driver did. Autoscalers read the code.
func (s *scope) driverFailed(failure *instance.Failure, left time.Duration) {
	sentence := sayProvider + failure.Err.Error()
	switch failure.Method {
	case instance.MethodInitialize:
		sentence = fmt.Sprintf(messages.ProviderError+"%v. "+messages.Initialize, failure.Err)
	case instance.MethodPrepare:
		s.failedToCreate(failure.Err.Error(), "", left)
		return
	}
	s.failedToCreate(sentence, failure.Code.String(), left)
}

func (s *scope) failedToCreate(sentence, code string, left time.Duration) {
	before := s.machine.Status.LastOperation
	if before.State != v1alpha1.MachineStateFailed || before.ErrorCode != code || (code == "" && before.Description != messages.Shorten(sentence, longestDescription)) {
		s.explain(corev1.EventTypeWarning, reasonFailedCreate, sentence)
	}
	s.operation(v1alpha1.MachineOperationCreate, v1alpha1.MachineStateFailed, sentence, code)
	if left > 0 {
		s.phase(v1alpha1.MachineCrashLoopBackOff)
	} else {
		s.phase(v1alpha1.MachineFailed)
	}
}

// note keeps the note that a driver left. After a creation that failed for good, a
// driver that left none has none: what was noted before describes nothing any more.
func (s *scope) note(answer instance.Answer) {
	switch failure := answer.Failure; {
	case answer.LastKnownState != nil:
		s.machine.Status.LastKnownState = *answer.LastKnownState
	case failure == nil || failure.Method == instance.MethodPrepare || !s.machine.DeletionTimestamp.IsZero():
	case !keepsState(failure.Code):
		s.machine.Status.LastKnownState = ""
	}
}

// keepsState reports whether the driver's note outlives a failure that left no new one.
func keepsState(code codes.Code) bool {
	switch code {
	case codes.ResourceExhausted, codes.Unknown, codes.DeadlineExceeded, codes.Aborted, codes.Unavailable:
		return true
	default:
		return false
	}
}

// neverJoined: the creation timeout is over.
func (s *scope) neverJoined(timeout time.Duration) {
	within := messages.Duration(timeout)
	if timeout%time.Minute == 0 { // as MCM says it
		within = fmt.Sprintf("%d minutes", timeout/time.Minute)
	}
	sentence := fmt.Sprintf("Machine %s "+messages.NeverJoined+" %s.", s.machine.Name, within)
	s.operation(s.machine.Status.LastOperation.Type, v1alpha1.MachineStateFailed, sentence, s.machine.Status.LastOperation.ErrorCode)
	s.phase(v1alpha1.MachineFailed)
	s.explain(corev1.EventTypeWarning, reasonFailedJoin, sentence)
}

// joined: the node is healthy. For a Machine that was being created that is the end of
// its creation, for any other a recovery.
func (s *scope) joined() {
	kind, sentence := v1alpha1.MachineOperationHealthCheck, fmt.Sprintf("Machine %s successfully re-joined the cluster", s.machine.Name)
	switch s.machine.Status.CurrentStatus.Phase {
	case "", v1alpha1.MachinePending, v1alpha1.MachineCrashLoopBackOff:
		took := s.now.Sub(s.machine.CreationTimestamp.Time)
		kind, sentence = v1alpha1.MachineOperationCreate, fmt.Sprintf("Machine %s successfully joined the cluster in %s", s.machine.Name, messages.Duration(took))
	}
	s.operation(kind, v1alpha1.MachineStateSuccessful, sentence, "")
	s.phase(v1alpha1.MachineRunning)
	s.explain(corev1.EventTypeNormal, reasonJoined, sentence)
}

// healthTimedOut: the node has not been healthy for too long.
func (s *scope) healthTimedOut(timeout time.Duration) {
	sentence := fmt.Sprintf("Machine %s health checks failing since last %v. Updating machine phase to Failed. Node Conditions: %s",
		s.machine.Name, timeout, describe(s.machine.Status.Conditions))
	s.operation(v1alpha1.MachineOperationHealthCheck, v1alpha1.MachineStateFailed, sentence, "")
	s.phase(v1alpha1.MachineFailed)
	s.explainBoth(corev1.EventTypeWarning, reasonFailedHealth, sentence)
}

// replacementDelayed: the same, but others come first.
func (s *scope) replacementDelayed(timeout time.Duration) {
	sentence := fmt.Sprintf("Machine %s health checks failing since last %v. It is not Failed yet, as other machines of %q are being replaced.",
		s.machine.Name, timeout, poolOf(s.machine))
	if s.operation(v1alpha1.MachineOperationHealthCheck, v1alpha1.MachineStateProcessing, sentence, "") {
		s.explain(corev1.EventTypeWarning, reasonDelayed, sentence)
	}
}

func (s *scope) nodeMissing() {
	s.unknown(fmt.Sprintf("Node object went missing. Machine %s is unhealthy - changing MachineState to Unknown", s.machine.Name))
}

func (s *scope) becameUnhealthy() {
	s.unknown(fmt.Sprintf("Machine %s is unhealthy - changing MachinePhase to Unknown. Node conditions: %s", s.machine.Name, describe(s.machine.Status.Conditions)))
}

func (s *scope) unknown(sentence string) {
	s.operation(v1alpha1.MachineOperationHealthCheck, v1alpha1.MachineStateProcessing, sentence, "")
	s.phase(v1alpha1.MachineUnknown)
	s.explain(corev1.EventTypeWarning, reasonUnhealthy, sentence)
}

// nodeSeen copies the conditions of the node, if they changed in what counts.
func (s *scope) nodeSeen() {
	if noderef.ConditionsDiffer(s.machine.Status.Conditions, s.node.Status.Conditions) {
		s.machine.Status.Conditions = slices.Clone(s.node.Status.Conditions) // an answer is decoded into it
	}
}

// reachable records the addresses of an instance that has no node to ask for them.
func (s *scope) reachable(found instance.Instance) {
	s.machine.Status.Addresses = mergeAddresses(s.machine.Status.Addresses, found)
}

// describe lists conditions in the order of their types, without times, which would
// make every heartbeat a change.
func describe(conditions []corev1.NodeCondition) string {
	var parts []string
	for _, condition := range conditions {
		parts = append(parts, fmt.Sprintf("%s=%s (%s)", condition.Type, condition.Status, condition.Reason))
	}
	slices.Sort(parts)
	return strings.Join(parts, ", ")
}

// mergeAddresses adds what a driver told to the addresses that are known, and the name
// of the node as one of them.
func mergeAddresses(known []corev1.NodeAddress, found instance.Instance) []corev1.NodeAddress {
	all := slices.Concat(known, found.Addresses)
	if found.NodeName != "" {
		all = append(all, corev1.NodeAddress{Type: corev1.NodeHostName, Address: found.NodeName})
	}
	slices.SortFunc(all, func(a, b corev1.NodeAddress) int {
		return cmp.Or(cmp.Compare(a.Type, b.Type), cmp.Compare(a.Address, b.Address))
	})
	return slices.Compact(all)
}
