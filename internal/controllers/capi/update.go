package capi

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/capi/core"
	"github.com/millwright-dev/millwright/internal/controllers/capi/marks"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
	"github.com/millwright-dev/millwright/internal/pool/liveupdate"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
)

// updateInstance updates the VM to match the spec while Cluster API updates the machine in place. The condition
// UpToDate reports the progress, which package hooks reads.
func (c *Controller) updateInstance(ctx context.Context, s *scope) flow.Result {
	if !core.Updating(s.machine) {
		return flow.Continue()
	}
	missing, err := c.readInputs(ctx, s)
	switch {
	case err != nil:
		return flow.Fail(err)
	case missing != nil:
		s.outdated(infrav1.ReasonUpdateFailed, missing.Message)
		return flow.Wait(slowRetry, missing.Message)
	}
	state, request := liveupdate.Read(s.machine.Annotations), s.request()
	request.MadeFrom = state.Spec()
	class := s.inputs.Class
	switch step, next := state.Next(class, liveupdate.Update); step {
	case liveupdate.Note:
		return c.recordUpdate(ctx, s, next)
	case liveupdate.Ask:
		return c.compared(ctx, s, c.Engine.Plan(request), func(d instance.Differences) liveupdate.State {
			return state.Planned(class, liveupdate.Update, d.Updates, d.AtNextStart, d.Replacements)
		})
	case liveupdate.Change:
		return c.compared(ctx, s, c.Engine.Update(request), func(d instance.Differences) liveupdate.State {
			return state.Updated(class, d.Updates, d.AtNextStart, d.Replacements)
		})
	default:
		s.settled(state)
		return flow.Continue()
	}
}

// compared records the result of a plan or an update.
func (c *Controller) compared(ctx context.Context, s *scope, result instance.UpdateResult, next func(instance.Differences) liveupdate.State) flow.Result {
	switch r := result.(type) {
	case instance.Compared:
		return c.recordUpdate(ctx, s, next(r.Differences))
	case instance.Failed:
		s.outdated(infrav1.ReasonUpdateFailed, failureMessage(r.Failure)+fmt.Sprintf(" (%s)", r.Failure.Code))
		return flow.Wait(s.retry(r.Retry), r.Failure.Error())
	}
	pending := result.(instance.Pending)
	remaining := pending.SilentIn(s.now)
	if remaining <= 0 {
		s.outdated(infrav1.ReasonUpdateFailed, fmt.Sprintf("The driver has not responded for %v", pending.Silence))
	} else if !s.updateFailed() {
		s.outdated(infrav1.ReasonUpdating, "The driver is comparing the VM with the spec and updating it")
	}
	return flow.Wait(max(remaining, 0), "the driver has not responded yet")
}

// recordUpdate stores the progress of the update, which causes the next pass.
func (c *Controller) recordUpdate(ctx context.Context, s *scope, next liveupdate.State) flow.Result {
	next.Write(s.machine)
	if next.Plan == nil { // otherwise the next check would not report a missing VM as lost
		marks.Found(s.machine, s.inputs.Class)
	}
	if err := c.persistSpec(ctx, s); err != nil {
		return flow.Fail(err)
	}
	c.Engine.Forget(s.key())
	return flow.Wait(slowRetry, "the progress of the update was stored")
}

// settled reports that the update is complete, or that the VM must be replaced.
func (s *scope) settled(state liveupdate.State) {
	if state.Plan != nil && len(state.Plan.Replacements) > 0 {
		s.outdated(infrav1.ReasonReplacementNeeded, fmt.Sprintf("VM %s must be replaced to match the spec: %s",
			s.machine.Spec.ProviderID, strings.Join(state.Plan.Replacements, "; ")))
		return
	}
	if s.setUpToDate(metav1.ConditionTrue, infrav1.ReasonUpdated, "") {
		s.event(corev1.EventTypeNormal, infrav1.ReasonUpdated, "VM "+s.machine.Spec.ProviderID+" matches the spec")
	}
}

// outdated reports that the VM does not match the spec yet. It sends an event only if the reason is a new failure,
// because the message may differ with each call.
func (s *scope) outdated(reason, message string) {
	before := meta.FindStatusCondition(s.machine.Status.Conditions, infrav1.ConditionUpToDate)
	known := before != nil && before.Reason == reason
	if s.setUpToDate(metav1.ConditionFalse, reason, message) && !known && reason != infrav1.ReasonUpdating {
		s.event(corev1.EventTypeWarning, reason, message)
	}
}

// setUpToDate sets the condition for the current generation, even if an earlier spec had the same result.
func (s *scope) setUpToDate(value metav1.ConditionStatus, reason, message string) bool {
	changed := s.set(infrav1.ConditionUpToDate, value, reason, message)
	meta.FindStatusCondition(s.machine.Status.Conditions, infrav1.ConditionUpToDate).ObservedGeneration = s.machine.Generation
	return changed
}

// updateFailed reports whether the last known result of the update is a failure.
func (s *scope) updateFailed() bool {
	condition := meta.FindStatusCondition(s.machine.Status.Conditions, infrav1.ConditionUpToDate)
	return condition != nil && condition.Reason == infrav1.ReasonUpdateFailed
}
