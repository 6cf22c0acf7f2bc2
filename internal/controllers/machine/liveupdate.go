package machine

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
	"github.com/millwright-dev/millwright/internal/pool/liveupdate"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// Topics of warnings about live updates.
const (
	topicStrategy     = "updateStrategy"
	topicLiveInputs   = "updateInputs"
	topicLiveSilent   = "updateSilent"
	topicLiveFailures = "updateFailed"
)

// Reasons of events about live updates.
const (
	reasonLiveUpdated      = "InstanceUpdated"
	reasonLiveUpdateFailed = "FailedUpdate"
	reasonNeedsReplacement = "ReplacementNeeded"
	reasonInvalidStrategy  = "InvalidUpdateStrategy"
)

// liveUpdater updates the instance of a Machine to its class without replacing it, if the update strategy or the
// MachineDeployment requests that.
type liveUpdater struct {
	*Options
	inputs inputReader
}

// liveUpdateScope is the scope of a pass over a Machine whose class exists.
type liveUpdateScope struct {
	*scope
	current  *v1alpha1.MachineClass
	strategy liveupdate.Strategy
	state    liveupdate.State
}

// run advances the live update of a Machine that is Running or Available. The next steps do not wait for it.
func (u *liveUpdater) run(ctx context.Context, s *scope) flow.Result {
	switch s.machine.Status.CurrentStatus.Phase {
	case v1alpha1.MachineRunning, v1alpha1.MachineAvailable:
	default:
		return flow.Continue()
	}
	class, err := u.inputs.readClass(ctx, s.machine.Namespace, s.machine.Spec.Class.Name)
	if class == nil {
		return flow.Fail(err)
	}
	strategy, invalid := liveupdate.Of(s.machine, class)
	s.events.warnOrForget(topicStrategy, pendingEvent{reason: reasonInvalidStrategy, message: invalid})
	live := &liveUpdateScope{scope: s, current: class, strategy: strategy, state: liveupdate.Read(s.machine.Annotations)}
	switch requested := liveupdate.RequestedClass(s.machine); requested {
	case "":
		return flow.Fail(u.update(ctx, live))
	case class.Name:
		live.strategy = liveupdate.Update
		if liveupdate.Settled(live.state, class) {
			return flow.Fail(live.conclude(ctx))
		}
		return flow.Fail(u.update(ctx, live))
	default:
		return flow.Fail(u.planClass(ctx, live, requested))
	}
}

// update updates the instance to the Machine's class.
func (u *liveUpdater) update(ctx context.Context, s *liveUpdateScope) error {
	step, next := s.state.Next(s.current, s.strategy)
	switch step {
	case liveupdate.Nothing:
		return nil
	case liveupdate.Note:
		return s.store(ctx, next)
	}
	in, missing, err := u.inputsOf(ctx, s, s.current)
	if err != nil || missing {
		return err
	}
	req := instance.Request{Machine: s.machine, Class: in.class, Secret: in.secret, MadeFrom: s.state.Spec()}
	if step == liveupdate.Ask {
		return u.recordPlan(ctx, s, u.Engine.Plan(req))
	}
	return u.recordUpdate(ctx, s, u.Engine.Update(req))
}

// inputsOf returns what the driver needs to know about a class, and adds a warning if something is missing.
func (u *liveUpdater) inputsOf(ctx context.Context, s *liveUpdateScope, class *v1alpha1.MachineClass) (in classInputs, missing bool, err error) {
	in, why, err := u.inputs.ofClass(ctx, class)
	if err != nil {
		return in, false, err
	}
	if why == "" {
		why = in.invalid()
	}
	s.events.warnOrForget(topicLiveInputs, pendingEvent{reason: reasonLiveUpdateFailed, message: why})
	return in, why != "", nil
}

func (u *liveUpdater) recordPlan(ctx context.Context, s *liveUpdateScope, result instance.UpdateResult) error {
	d, compared := s.compared(result)
	if !compared {
		return nil
	}
	if err := u.storeResult(ctx, s, s.state.Planned(s.current, s.strategy, d.Updates, d.AtNextStart, d.Replacements)); err != nil {
		return err
	}
	if len(d.Replacements) > 0 {
		s.events.add(corev1.EventTypeWarning, reasonNeedsReplacement, cause{name: v1alpha1.CauseReplacementNeeded},
			fmt.Sprintf("VM %s must be replaced to match MachineClass %q: %s", s.machine.Spec.ProviderID, s.current.Name, strings.Join(d.Replacements, "; ")))
	}
	return nil
}

func (u *liveUpdater) recordUpdate(ctx context.Context, s *liveUpdateScope, result instance.UpdateResult) error {
	d, compared := s.compared(result)
	if !compared {
		return nil
	}
	if err := u.storeResult(ctx, s, s.state.Updated(s.current, d.Updates, d.AtNextStart, d.Replacements)); err != nil {
		return err
	}
	s.updateSucceeded(d)
	return nil
}

// storeResult stores the state that follows from a driver's result, and then discards the result in the engine.
func (u *liveUpdater) storeResult(ctx context.Context, s *liveUpdateScope, next liveupdate.State) error {
	if err := s.store(ctx, next); err != nil {
		return err
	}
	u.Engine.Forget(s.key())
	return nil
}

func (s *liveUpdateScope) store(ctx context.Context, next liveupdate.State) error {
	return s.patch(ctx, func(machine *v1alpha1.Machine) { next.Write(machine) })
}

// conclude removes the request of the MachineDeployment after the update to the Machine's class.
func (s *liveUpdateScope) conclude(ctx context.Context) error {
	return s.patch(ctx, func(machine *v1alpha1.Machine) { delete(machine.Annotations, v1alpha1.AnnotationKeyUpdateClass) })
}

// compared returns the differences that the driver found, and whether the driver has returned them. If not, it
// records a failure, or that the driver does not return.
func (s *liveUpdateScope) compared(result instance.UpdateResult) (d instance.Differences, ok bool) {
	switch r := result.(type) {
	case instance.Compared:
		s.memory.sent.Over(topicLiveSilent)
		s.memory.sent.Over(topicLiveFailures)
		return r.Differences, true
	case instance.Failed:
		s.requeueWithin(r.Retry)
		s.updateFailed(r.Failure)
	case instance.Pending:
		s.awaitDriver(r)
	}
	return d, false
}

// awaitDriver waits for the driver, and adds a warning if the driver does not return in time.
func (s *liveUpdateScope) awaitDriver(pending instance.Pending) {
	if wait := pending.SilentIn(s.now); wait > 0 {
		s.requeueWithin(wait)
		return
	}
	s.events.warnOncePer(topicLiveSilent, driverSilent(pending), pendingEvent{
		reason: reasonLiveUpdateFailed, message: driverSilent(pending) + ".",
		cause: cause{name: v1alpha1.CauseDriverSilent, method: string(instance.MethodUpdate)},
	})
}

// updateFailed records why an update fails. The state of the operation is not Failed, since the instance still
// works and other programs count Machines by that state. A new message with the same code causes no event.
func (s *liveUpdateScope) updateFailed(failure *instance.Failure) {
	description, code := messages.Provider+failure.Err.Error(), failure.Code.String()
	s.setOperation(v1alpha1.MachineOperationUpdate, v1alpha1.MachineStateProcessing, description, code)
	s.events.warnOncePer(topicLiveFailures, code, pendingEvent{reason: reasonLiveUpdateFailed, message: description, cause: driverCause(failure)})
}

// updateSucceeded records an update. If the driver's response was lost, it reports the changes in the plan.
func (s *liveUpdateScope) updateSucceeded(d instance.Differences) {
	updates, later := d.Updates, d.AtNextStart
	if len(updates) == 0 && s.state.Plan != nil {
		updates, later = s.state.Plan.Updates, s.state.Plan.AtNextStart
	}
	sentence := fmt.Sprintf("VM %s updated to MachineClass %q: %s", s.machine.Spec.ProviderID, s.current.Name, strings.Join(updates, ", "))
	if len(later) > 0 {
		sentence += fmt.Sprintf(" (at its next start: %s)", strings.Join(later, ", "))
	}
	s.setOperation(v1alpha1.MachineOperationUpdate, v1alpha1.MachineStateSuccessful, sentence, "")
	s.events.add(corev1.EventTypeNormal, reasonLiveUpdated, cause{}, sentence)
}
