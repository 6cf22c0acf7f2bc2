// Package vmupdate brings the VM of a Machine that is in use closer to its class, if somebody asked for that.
package vmupdate

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/machine/inputs"
	"github.com/millwright-dev/millwright/internal/controllers/machine/passevents"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
	"github.com/millwright-dev/millwright/internal/pool/liveupdate"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// Topics of warnings about updates of VMs.
const (
	topicStrategy = "updateStrategy"
	topicInputs   = "updateInputs"
	topicSilent   = "updateSilent"
	topicFailed   = "updateFailed"
)

// Reasons of events.
const (
	reasonUpdated          = "InstanceUpdated"
	reasonFailed           = "FailedUpdate"
	reasonNeedsReplacement = "ReplacementNeeded"
	reasonInvalidStrategy  = "InvalidUpdateStrategy"
)

// Updater takes updates of VMs one pass further. All fields are required.
type Updater struct {
	Inputs inputs.Reader
	Engine *instance.Engine
}

// Pass is one pass over a Machine.
type Pass struct {
	Machine *v1alpha1.Machine
	Now     time.Time
	Events  *passevents.List
	// Annotate changes annotations of the Machine in the API server.
	Annotate func(ctx context.Context, change func(*v1alpha1.Machine)) error
}

// Outcome is what a pass came to.
type Outcome struct {
	// Operation is the next last operation, but for its time; the zero value if it stays.
	Operation v1alpha1.LastOperation
	// Wake is when to look again at the latest; zero if there is no such time.
	Wake time.Duration
}

// pass is one pass over a Machine, whose class has been read.
type pass struct {
	Updater
	Pass
	Outcome
	class    *v1alpha1.MachineClass
	strategy liveupdate.Strategy
	state    liveupdate.State
}

// Run takes the update of a Machine's VM one pass further.
func (u Updater) Run(ctx context.Context, of Pass) (Outcome, error) {
	switch of.Machine.Status.CurrentStatus.Phase {
	case v1alpha1.MachineRunning, v1alpha1.MachineAvailable:
	default:
		return Outcome{}, nil
	}
	class, err := u.classOf(ctx, of.Machine, of.Machine.Spec.Class.Name)
	if class == nil {
		return Outcome{}, err
	}
	p := &pass{Updater: u, Pass: of, class: class, state: liveupdate.Read(of.Machine.Annotations)}
	err = p.run(ctx)
	return p.Outcome, err
}

func (p *pass) run(ctx context.Context) error {
	var wrong string
	p.strategy, wrong = liveupdate.Of(p.Machine, p.class)
	p.Events.WarnOrForget(topicStrategy, passevents.Event{Reason: reasonInvalidStrategy, Message: wrong})
	switch asked := liveupdate.Asked(p.Machine); asked {
	case "":
		return p.towards(ctx)
	case p.class.Name:
		p.strategy = liveupdate.Update
		if liveupdate.Settled(p.state, p.class) {
			return p.conclude(ctx)
		}
		return p.towards(ctx)
	default:
		return p.about(ctx, asked)
	}
}

// towards takes the VM towards the class of the Machine.
func (p *pass) towards(ctx context.Context) error {
	step, next := p.state.Next(p.class, p.strategy)
	switch step {
	case liveupdate.Nothing:
		return nil
	case liveupdate.Note:
		return p.annotate(ctx, next)
	}
	return p.ask(ctx, step)
}

// inputsOf returns what the driver needs of a class, and warns if something is missing.
func (p *pass) inputsOf(ctx context.Context, class *v1alpha1.MachineClass) (of inputs.Inputs, missing bool, err error) {
	of, why, err := p.Inputs.OfClass(ctx, class)
	if err != nil {
		return of, false, err
	}
	if why == "" {
		why = of.Invalid()
	}
	p.Events.WarnOrForget(topicInputs, passevents.Event{Reason: reasonFailed, Message: why})
	return of, why != "", nil
}

// ask plans or makes an update, and notes the result.
func (p *pass) ask(ctx context.Context, step liveupdate.Step) error {
	inputs, missing, err := p.inputsOf(ctx, p.class)
	if err != nil || missing {
		return err
	}
	req := instance.Request{Machine: p.Machine, Class: inputs.Class, Secret: inputs.Secret, MadeFrom: p.state.Spec()}
	if step == liveupdate.Ask {
		return p.planned(ctx, p.Engine.Plan(req))
	}
	return p.updated(ctx, p.Engine.Update(req))
}

func (p *pass) planned(ctx context.Context, result instance.UpdateResult) error {
	d, done := p.compared(result)
	if !done {
		return nil
	}
	if err := p.note(ctx, p.state.Planned(p.class, p.strategy, d.Updates, d.AtNextStart, d.Replacements)); err != nil {
		return err
	}
	if len(d.Replacements) > 0 {
		p.Events.Add(corev1.EventTypeWarning, reasonNeedsReplacement, passevents.Cause{Name: v1alpha1.CauseReplacementNeeded},
			fmt.Sprintf("VM %s needs a replacement to be as MachineClass %q says: %s", p.Machine.Spec.ProviderID, p.class.Name, strings.Join(d.Replacements, "; ")))
	}
	return nil
}

func (p *pass) updated(ctx context.Context, result instance.UpdateResult) error {
	d, done := p.compared(result)
	if !done {
		return nil
	}
	if err := p.note(ctx, p.state.Updated(p.class, d.Updates, d.AtNextStart, d.Replacements)); err != nil {
		return err
	}
	p.succeeded(d)
	return nil
}

// note stores what follows from a result, which the engine need not keep any longer.
func (p *pass) note(ctx context.Context, next liveupdate.State) error {
	if err := p.annotate(ctx, next); err != nil {
		return err
	}
	p.Engine.Forget(client.ObjectKeyFromObject(p.Machine))
	return nil
}

func (p *pass) annotate(ctx context.Context, next liveupdate.State) error {
	return p.Annotate(ctx, func(machine *v1alpha1.Machine) { next.Write(machine) })
}

// compared returns the differences that the driver found, and whether it is done. It records a failure, and
// that a driver is silent.
func (p *pass) compared(result instance.UpdateResult) (d instance.Differences, done bool) {
	switch r := result.(type) {
	case instance.Compared:
		p.Events.Sent.Over(topicSilent)
		p.Events.Sent.Over(topicFailed)
		return r.Differences, true
	case instance.Failed:
		p.Wake = r.Retry
		p.failed(r.Failure)
	case instance.Pending:
		p.await(r)
	}
	return d, false
}

// await waits for the driver, and warns if it is silent.
func (p *pass) await(pending instance.Pending) {
	if wait := pending.SilentIn(p.Now); wait > 0 {
		p.Wake = wait
		return
	}
	silent := fmt.Sprintf(messages.NoAnswer+" for %v", instance.Silence)
	p.Events.WarnAbout(topicSilent, silent, passevents.Event{
		Reason: reasonFailed, Message: silent + ".",
		Cause: passevents.Cause{Name: v1alpha1.CauseDriverSilent, Method: string(instance.MethodUpdate)},
	})
}

// failed records why an update fails. The Machine itself is as well as before, so the operation is not
// Failed: others count Machines of which it is. A new message of the same code makes no event.
func (p *pass) failed(failure *instance.Failure) {
	description, code := messages.Provider+failure.Err.Error(), failure.Code.String()
	p.Operation = v1alpha1.LastOperation{
		Type: v1alpha1.MachineOperationUpdate, State: v1alpha1.MachineStateProcessing, Description: description, ErrorCode: code,
	}
	p.Events.WarnAbout(topicFailed, code, passevents.Event{Reason: reasonFailed, Message: description, Cause: passevents.OfDriver(failure)})
}

// succeeded records an update. If its answer was lost, the plan says what it was.
func (p *pass) succeeded(d instance.Differences) {
	updates, later := d.Updates, d.AtNextStart
	if len(updates) == 0 && p.state.Plan != nil {
		updates, later = p.state.Plan.Updates, p.state.Plan.AtNextStart
	}
	sentence := fmt.Sprintf("VM %s updated to MachineClass %q: %s", p.Machine.Spec.ProviderID, p.class.Name, strings.Join(updates, ", "))
	if len(later) > 0 {
		sentence += fmt.Sprintf(" (at its next start: %s)", strings.Join(later, ", "))
	}
	p.Operation = v1alpha1.LastOperation{Type: v1alpha1.MachineOperationUpdate, State: v1alpha1.MachineStateSuccessful, Description: sentence}
	p.Events.Add(corev1.EventTypeNormal, reasonUpdated, passevents.Cause{}, sentence)
}
