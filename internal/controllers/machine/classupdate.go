package machine

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/machine/passevents"
	"github.com/millwright-dev/millwright/internal/lifecycle/classupdate"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// Topics of warnings about updates of instances.
const (
	topicUpdateStrategy = "updateStrategy"
	topicUpdateInputs   = "updateInputs"
	topicUpdateSilent   = "updateSilent"
	topicUpdateFailed   = "updateFailed"
)

// updateInstance brings the instance of a Machine that is in use closer to its class, if somebody asked for that. The
// other steps do not wait for it.
func (c *Controller) updateInstance(ctx context.Context, s *scope) flow.Result {
	switch s.machine.Status.CurrentStatus.Phase {
	case v1alpha1.MachineRunning, v1alpha1.MachineAvailable:
	default:
		return flow.Continue()
	}
	class := &v1alpha1.MachineClass{}
	key := types.NamespacedName{Namespace: s.machine.Namespace, Name: s.machine.Spec.Class.Name}
	switch err := c.Client.Get(ctx, key, class, client.UnsafeDisableDeepCopy); {
	case apierrors.IsNotFound(err):
		return flow.Continue()
	case err != nil:
		return flow.Fail(fmt.Errorf("reading MachineClass %s: %w", key.Name, err))
	}
	strategy, wrong := classupdate.Of(s.machine, class)
	s.events.WarnOrForget(topicUpdateStrategy, passevents.Event{Reason: reasonInvalidStrategy, Message: wrong})
	state := classupdate.Read(s.machine.Annotations)
	step, next := state.Next(class, strategy)
	switch step {
	case classupdate.Nothing:
		return flow.Continue()
	case classupdate.Note:
		return flow.Fail(c.noteUpdate(ctx, s, next))
	}
	return flow.Fail(c.askForUpdate(ctx, s, updating{class: class, strategy: strategy, state: state, step: step}))
}

// updating is an update of an instance, or a dry run of one.
type updating struct {
	class    *v1alpha1.MachineClass
	strategy classupdate.Strategy
	state    classupdate.State
	step     classupdate.Step
}

func (c *Controller) noteUpdate(ctx context.Context, s *scope, next classupdate.State) error {
	return c.patchMachine(ctx, s, next.Write)
}

// askForUpdate has the driver plan or make an update, and notes its answer.
func (c *Controller) askForUpdate(ctx context.Context, s *scope, u updating) error {
	inputs, missing, err := c.inputs().OfClass(ctx, u.class)
	if err != nil {
		return err
	}
	if missing == "" {
		missing = inputs.Invalid()
	}
	s.events.WarnOrForget(topicUpdateInputs, passevents.Event{Reason: reasonFailedUpdate, Message: missing})
	if missing != "" {
		return nil
	}
	req := instance.Request{Machine: s.machine, Class: inputs.Class, Secret: inputs.Secret, MadeFrom: u.state.Spec()}
	if u.step == classupdate.Ask {
		return c.planned(ctx, s, u, c.Engine.Plan(req))
	}
	return c.updated(ctx, s, u, c.Engine.Update(req))
}

func (c *Controller) planned(ctx context.Context, s *scope, u updating, answer instance.Answer) error {
	if !s.answered(answer) {
		return nil
	}
	d := answer.Differences
	next := u.state.Planned(u.class, u.strategy, d.Updates, d.AtNextStart, d.Replacements)
	if err := c.noteUpdate(ctx, s, next); err != nil {
		return err
	}
	c.Engine.Forget(s.key())
	if len(d.Replacements) > 0 {
		s.needsReplacement(d.Replacements, u.class.Name)
	}
	return nil
}

func (c *Controller) updated(ctx context.Context, s *scope, u updating, answer instance.Answer) error {
	if !s.answered(answer) {
		return nil
	}
	d := answer.Differences
	if err := c.noteUpdate(ctx, s, u.state.Updated(u.class, d.Updates, d.AtNextStart, d.Replacements)); err != nil {
		return err
	}
	c.Engine.Forget(s.key())
	s.instanceUpdated(u.state.Plan, d, u.class.Name)
	return nil
}

// answered reports whether the driver has answered. It records a failure, and that a driver is silent.
func (s *scope) answered(answer instance.Answer) bool {
	switch answer.State {
	case instance.Exists:
		s.memory.sent.Over(topicUpdateSilent)
		s.memory.sent.Over(topicUpdateFailed)
		return true
	case instance.Failed:
		s.wakeWithin(answer.Retry)
		s.updateFailed(answer.Failure)
		return false
	}
	wait := answer.SilentIn(s.now)
	if wait > 0 {
		s.wakeWithin(wait)
		return false
	}
	s.events.WarnAbout(topicUpdateSilent, noAnswer, passevents.Event{
		Reason: reasonFailedUpdate, Message: noAnswer + ".",
		Cause: passevents.Cause{Name: v1alpha1.CauseDriverSilent, Method: string(instance.MethodUpdate)},
	})
	return false
}

// updateFailed records why an update fails. The Machine itself is as well as before, so the operation is not
// Failed: others count Machines of which it is. A new message of the same code makes no event.
func (s *scope) updateFailed(failure *instance.Failure) {
	description := messages.Provider + failure.Err.Error()
	s.operation(v1alpha1.MachineOperationUpdate, v1alpha1.MachineStateProcessing, description, failure.Code.String())
	s.events.WarnAbout(topicUpdateFailed, failure.Code.String(), passevents.Event{
		Reason: reasonFailedUpdate, Message: description, Cause: passevents.OfDriver(failure),
	})
}

func (s *scope) needsReplacement(replacements []string, class string) {
	s.events.Add(corev1.EventTypeWarning, reasonNeedsReplacement, passevents.Cause{Name: v1alpha1.CauseReplacementNeeded},
		fmt.Sprintf("VM %s needs a replacement to be as MachineClass %q says: %s", s.machine.Spec.ProviderID, class, strings.Join(replacements, "; ")))
}

// instanceUpdated records an update. If its answer was lost, the plan says what it was.
func (s *scope) instanceUpdated(plan *classupdate.Plan, d instance.Differences, class string) {
	updates, later := d.Updates, d.AtNextStart
	if len(updates) == 0 && plan != nil {
		updates, later = plan.Updates, plan.AtNextStart
	}
	sentence := fmt.Sprintf("VM %s updated to MachineClass %q: %s", s.machine.Spec.ProviderID, class, strings.Join(updates, ", "))
	if len(later) > 0 {
		sentence += fmt.Sprintf(" (at its next start: %s)", strings.Join(later, ", "))
	}
	s.operation(v1alpha1.MachineOperationUpdate, v1alpha1.MachineStateSuccessful, sentence, "")
	s.events.Add(corev1.EventTypeNormal, reasonUpdated, passevents.Cause{}, sentence)
}
