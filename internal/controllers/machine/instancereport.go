package machine

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance/steps"
	"github.com/millwright-dev/millwright/internal/lifecycle/outage"
	"github.com/millwright-dev/millwright/internal/lifecycle/ownership"
	"github.com/millwright-dev/millwright/internal/lifecycle/timeouts"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// MCM's descriptions of a creation, which other programs read.
const (
	descriptionCreating = "Creating machine on cloud provider"
	descriptionCreated  = "Created machine on cloud provider"
)

func driverSilent(pending instance.Pending) string {
	return fmt.Sprintf(messages.NoResponse+" for %v", pending.Silence)
}

// Conflict implements steps.Adapter. A Machine that is being deleted and never had the instance is
// deleted without it.
func (a adapter) Conflict(_ context.Context, step steps.Step, providerID string, other ownership.Owner) flow.Result {
	switch step {
	case steps.Ensure:
		message := ownedMessage(providerID, other)
		a.s.failedToCreate(cause{name: v1alpha1.CauseInstanceOwned}, message, 0) // a retry would not help
		return flow.Wait(0, message)
	case steps.AwaitSoleOwner:
		message := fmt.Sprintf("VM %s "+messages.AlsoOwnedBy+" %s; clear spec.providerID of the object that does not own the VM.", providerID, describeOwner(other))
		a.s.deletionImpossible(reasonFailedDelete, cause{name: v1alpha1.CauseInstanceShared}, message, identifying)
		return flow.Wait(time.Minute, message)
	default:
		a.s.ownedByOther = ownedMessage(providerID, other)
		return flow.Continue()
	}
}

// Exists implements steps.Reporter.
func (a adapter) Exists(_ context.Context, result instance.Exists) flow.Result {
	a.s.setLastKnownState(result.LastKnownState)
	if result.Created {
		a.announceCapacity()
	}
	a.s.instanceExists(a.Target != nil)
	return flow.Continue()
}

// Lost implements steps.Reporter.
func (a adapter) Lost(context.Context) flow.Result {
	a.s.instanceLost()
	return flow.Wait(0, "the VM is gone")
}

// Gone implements steps.Reporter.
func (a adapter) Gone(_ context.Context, _ steps.Step, result instance.Gone) flow.Result {
	a.s.setLastKnownState(result.LastKnownState)
	return flow.Continue()
}

// Remains implements steps.Reporter.
func (a adapter) Remains(_ context.Context, result instance.Remains) flow.Result {
	a.s.setLastKnownState(result.LastKnownState)
	a.s.instanceRemains(deletingInstance)
	return flow.Wait(result.Retry, "the VM to be gone")
}

// Failed implements steps.Reporter.
func (a adapter) Failed(ctx context.Context, step steps.Step, result instance.Failed) flow.Result {
	a.s.setLastKnownState(result.LastKnownState)
	if step == steps.Ensure {
		if result, falls := a.fallBack(ctx, &result); falls {
			return result
		}
		return a.creationFailed(ctx, a.s, result)
	}
	// MCM sets no code on deletions, and neither do we.
	message := fmt.Sprintf("%s%v.", messages.Provider, result.Failure.Err)
	a.s.deletionImpossible(reasonFailedDelete, driverCause(result.Failure), message, deletionStepOf(step))
	return flow.Wait(result.Retry, result.Failure.Error())
}

// Await implements steps.Reporter.
func (a adapter) Await(ctx context.Context, step steps.Step, result instance.Pending) flow.Result {
	if step == steps.Ensure {
		return a.awaitDriver(ctx, a.s, result)
	}
	return a.s.awaitDeletion(result, deletionStepOf(step))
}

func deletionStepOf(step steps.Step) deletionStep {
	if step == steps.Identify {
		return identifying
	}
	return deletingInstance
}

// creationImpossible records why the driver cannot be called. The Machine becomes Failed after its creation
// timeout.
func (i *instances) creationImpossible(ctx context.Context, s *scope, why, message string) flow.Result {
	left := s.creationTimeLeft(ctx, i.CreationTimeout)
	s.failedToCreate(cause{name: why}, message, left.Left)
	return flow.Wait(max(left.Wait, 0), message)
}

func (i *instances) creationFailed(ctx context.Context, s *scope, result instance.Failed) flow.Result {
	left, failure := s.creationTimeLeft(ctx, i.CreationTimeout), result.Failure
	if result.LastKnownState == nil {
		s.clearLastKnownState(failure)
	}
	method := failure.Method
	nameTaken := failure.Code == codes.AlreadyExists && (method == instance.MethodCreate || method == instance.MethodInitialize)
	if nameTaken && metav1.GetControllerOfNoCopy(s.machine) != nil {
		left = outage.Countdown{} // the MachineSet's next Machine has another name
	}
	if failure.Elsewhere() && s.machine.Spec.ProviderID != "" {
		left.Left = max(left.Left, 1) // its VM may be running in a location that only a user can configure
	}
	s.driverFailed(failure, left.Left)
	if s.machine.Spec.ProviderID != "" {
		if err := i.tokens.keep(ctx, s); err != nil {
			return flow.Fail(err)
		}
	}
	wait := result.Retry
	if !left.Over() {
		wait = min(wait, left.Wait)
	}
	return flow.Wait(wait, failure.Error())
}

// awaitDriver waits for the driver until the creation timeout expires, so that a driver that never returns does
// not block a MachineSet.
func (i *instances) awaitDriver(ctx context.Context, s *scope, pending instance.Pending) flow.Result {
	left := s.creationTimeLeft(ctx, i.CreationTimeout)
	if !left.Over() {
		return flow.Wait(left.Wait, "the driver")
	}
	why := cause{name: v1alpha1.CauseDriverSilent}
	switch s.machine.Status.CurrentStatus.Phase {
	case "":
		s.failedToCreate(why, fmt.Sprintf(messages.NoResponse+" within %s", messages.Duration(timeouts.Creation(s.machine, i.CreationTimeout).Duration)), left.Left)
	case v1alpha1.MachineCrashLoopBackOff: // the driver has responded before
		if wait := pending.SilentIn(i.Clock.Now()); wait > 0 {
			return flow.Wait(wait, "the driver")
		}
		s.failedToCreate(why, driverSilent(pending), left.Left)
	}
	return flow.Wait(0, "the driver")
}

// creationTimeLeft returns how long the Machine may still take to join. A restart or an outage does not extend the
// time of a Failed Machine, but a longer timeout does. flag is the timeout from the manager's flag.
func (s *scope) creationTimeLeft(ctx context.Context, flag time.Duration) outage.Countdown {
	begin, timeout := s.machine.CreationTimestamp.Time, timeouts.Creation(s.machine, flag)
	if s.machine.Status.CurrentStatus.Phase == v1alpha1.MachineFailed {
		if left := timeout.Deadline(begin).Sub(s.now); left <= 0 {
			return outage.Countdown{Left: left}
		}
	}
	return s.outages.Countdown(ctx, begin, timeout)
}

// instanceExists records that the instance of a new Machine exists. If a node is expected, the Machine becomes
// Pending; otherwise it becomes Available.
func (s *scope) instanceExists(nodeExpected bool) {
	if ownership.Settled(s.machine) {
		return
	}
	if !nodeExpected {
		s.setOperation(v1alpha1.MachineOperationCreate, v1alpha1.MachineStateSuccessful, descriptionCreated, "")
		s.setPhase(v1alpha1.MachineAvailable)
		return
	}
	s.setOperation(v1alpha1.MachineOperationCreate, v1alpha1.MachineStateProcessing, descriptionCreating, "")
	s.setPhase(v1alpha1.MachinePending)
	s.machine.Status.CurrentStatus.TimeoutActive = true
}

func (s *scope) instanceLost() {
	sentence := fmt.Sprintf("VM %s "+messages.VMLost, s.machine.Spec.ProviderID)
	if s.machine.Status.CurrentStatus.Phase != v1alpha1.MachineUnknown {
		s.events.add(corev1.EventTypeWarning, reasonUnhealthy, cause{name: v1alpha1.CauseInstanceLost}, sentence)
	}
	s.setOperation(v1alpha1.MachineOperationHealthCheck, v1alpha1.MachineStateProcessing, sentence, "")
	s.setPhase(v1alpha1.MachineUnknown)
}

// driverFailed records a failed driver call with its code, which autoscalers read. left is the Machine's remaining
// creation time.
func (s *scope) driverFailed(failure *instance.Failure, left time.Duration) {
	description := messages.Provider + failure.Err.Error()
	switch failure.Method {
	case instance.MethodPrepare:
		s.failedToCreate(cause{name: v1alpha1.CauseBootstrapFailed}, failure.Err.Error(), left)
		return
	case instance.MethodInitialize:
		description = fmt.Sprintf(messages.ProviderError+"%v. "+messages.Initialize, failure.Err)
	}
	s.failedToCreate(driverCause(failure), description, left)
}

// failedToCreate records why the creation failed. The Machine becomes Failed if no time is left. A driver failure
// causes an event only if its code changed, since the message may differ with each attempt.
func (s *scope) failedToCreate(why cause, description string, left time.Duration) {
	before := s.machine.Status.LastOperation
	changed := s.setOperation(v1alpha1.MachineOperationCreate, v1alpha1.MachineStateFailed, description, why.code)
	if before.State != v1alpha1.MachineStateFailed || before.ErrorCode != why.code || why.code == "" && changed {
		s.events.add(corev1.EventTypeWarning, reasonFailedCreate, why, description)
	}
	if left > 0 {
		s.setPhase(v1alpha1.MachineCrashLoopBackOff)
	} else {
		s.setPhase(v1alpha1.MachineFailed)
	}
}

// setLastKnownState stores the LastKnownState that a driver returned, unless it is nil.
func (s *scope) setLastKnownState(state *string) {
	if state != nil {
		s.machine.Status.LastKnownState = *state
	}
}

// clearLastKnownState clears the driver's LastKnownState after a creation that failed permanently, since it is
// obsolete.
func (s *scope) clearLastKnownState(failure *instance.Failure) {
	if failure.Method == instance.MethodPrepare {
		return
	}
	switch failure.Code {
	case codes.ResourceExhausted, codes.Unknown, codes.DeadlineExceeded, codes.Aborted, codes.Unavailable:
		// the creation may still be in progress
	default:
		s.machine.Status.LastKnownState = ""
	}
}
