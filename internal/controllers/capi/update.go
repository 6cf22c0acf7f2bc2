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

// updateInstance changes the VM into what the spec says while Cluster API updates the machine in place. The
// condition says how far that is, which package hooks reads.
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
		return c.noteUpdate(ctx, s, next)
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

// compared notes what follows from the result of a plan or an update.
func (c *Controller) compared(ctx context.Context, s *scope, result instance.UpdateResult, next func(instance.Differences) liveupdate.State) flow.Result {
	switch r := result.(type) {
	case instance.Compared:
		return c.noteUpdate(ctx, s, next(r.Differences))
	case instance.Failed:
		s.outdated(infrav1.ReasonUpdateFailed, failureMessage(r.Failure)+fmt.Sprintf(" (%s)", r.Failure.Code))
		return flow.Wait(s.retry(r.Retry), r.Failure.Error())
	}
	left := result.(instance.Pending).SilentIn(s.now)
	if left <= 0 {
		s.outdated(infrav1.ReasonUpdateFailed, fmt.Sprintf("The driver has not answered for %v", instance.Silence))
	} else if !s.updateFailed() {
		s.outdated(infrav1.ReasonUpdating, "The driver compares the VM with the spec, and changes it")
	}
	return flow.Wait(max(left, 0), "the driver")
}

// noteUpdate stores how far the update is, which brings the next reconcile.
func (c *Controller) noteUpdate(ctx context.Context, s *scope, next liveupdate.State) flow.Result {
	next.Write(s.machine)
	if next.Plan == nil { // or the next check would not believe that the VM is missing
		marks.Found(s.machine, s.inputs.Class)
	}
	if err := c.persistSpec(ctx, s); err != nil {
		return flow.Fail(err)
	}
	c.Engine.Forget(s.key())
	return flow.Wait(slowRetry, "how far the update is to be stored")
}

// settled reports that there is nothing more to do for the update.
func (s *scope) settled(state liveupdate.State) {
	if state.Plan != nil && len(state.Plan.Replacements) > 0 {
		s.outdated(infrav1.ReasonReplacementNeeded, fmt.Sprintf("VM %s needs a replacement to be as the spec says: %s",
			s.machine.Spec.ProviderID, strings.Join(state.Plan.Replacements, "; ")))
		return
	}
	if s.setUpToDate(metav1.ConditionTrue, infrav1.ReasonUpdated, "") {
		s.event(corev1.EventTypeNormal, infrav1.ReasonUpdated, "VM "+s.machine.Spec.ProviderID+" is as the spec says")
	}
}

// outdated reports that the VM is not yet as the spec says. An event is sent if the reason is new and bad: the
// message may differ with each call.
func (s *scope) outdated(reason, message string) {
	before := meta.FindStatusCondition(s.machine.Status.Conditions, infrav1.ConditionUpToDate)
	known := before != nil && before.Reason == reason
	if s.setUpToDate(metav1.ConditionFalse, reason, message) && !known && reason != infrav1.ReasonUpdating {
		s.event(corev1.EventTypeWarning, reason, message)
	}
}

// setUpToDate sets the condition, and says that it is about the present spec: another one may have come to the
// same.
func (s *scope) setUpToDate(value metav1.ConditionStatus, reason, message string) bool {
	changed := s.set(infrav1.ConditionUpToDate, value, reason, message)
	meta.FindStatusCondition(s.machine.Status.Conditions, infrav1.ConditionUpToDate).ObservedGeneration = s.machine.Generation
	return changed
}

// updateFailed reports whether the last that is known of the update is that it failed.
func (s *scope) updateFailed() bool {
	condition := meta.FindStatusCondition(s.machine.Status.Conditions, infrav1.ConditionUpToDate)
	return condition != nil && condition.Reason == infrav1.ReasonUpdateFailed
}
