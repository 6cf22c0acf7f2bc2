// Package inplace updates the nodes of Machines in place.
//
// A MachineDeployment, or a user, labels nodes as candidates and selects some. A selected node is
// drained and gets the condition InPlaceUpdate with the reason ReadyForUpdate. An agent on the node
// then updates it, and sets the label update-result. Everything is in these objects, so that any
// manager, MCM too, can go on at any point.
//
// The Machine is InPlaceUpdating before its node becomes ready for the update, so that a node that
// restarts is not taken for an unhealthy one.
package inplace

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/machine/draintime"
	"github.com/millwright-dev/millwright/internal/lifecycle/drain"
	"github.com/millwright-dev/millwright/internal/lifecycle/nodes"
	"github.com/millwright-dev/millwright/internal/lifecycle/timeouts"
)

// Updater takes updates one pass further. All fields but Drainer are required.
type Updater struct {
	// Target is a client of the cluster of the nodes.
	Target client.Client
	Nodes  *nodes.Writer
	// Drainer drains nodes. Without one they are only cordoned.
	Drainer draintime.Drainer
	Timer   draintime.Timer
	// MaxEvictRetries is that of the manager's flag; a Machine may have its own.
	MaxEvictRetries int32
}

// Outcome is what a pass has done, and what the Machine's status and events have to say.
type Outcome struct {
	// Phase is the next phase of the Machine; empty if it keeps its own. The pass ends with it.
	Phase v1alpha1.MachinePhase
	// Operation is the next last operation, but for its time; the zero value if it stays.
	Operation v1alpha1.LastOperation
	Events    []Event
	// Misplaced is a warning about labels; empty if there is none.
	Misplaced string
	// Problem is why the drain does not get on; empty if it does.
	Problem string
	// Timing is that of the drain.
	Timing draintime.Reading
	// Wake is when to look again at the latest; zero if there is no such time.
	Wake time.Duration
}

// Event is an event on the Machine and its node.
type Event struct {
	Kind, Reason string
	// Cause is empty unless something went wrong.
	Cause   string
	Message string
}

// Reasons of events.
const (
	ReasonSelected   = "UpdateSelected"
	ReasonReady      = "UpdateReady"
	ReasonSuccessful = "UpdateSuccessful"
	ReasonFailed     = "UpdateFailed"
	ReasonMisplaced  = "UpdateLabels"
	reasonForced     = "ForcedDrain"
)

// pass is one pass over a Machine.
type pass struct {
	Updater
	Outcome
	machine *v1alpha1.Machine
	node    **corev1.Node
	now     time.Time
}

// Run takes the update of a Machine's node one pass further, and replaces the node by what was written.
// An outcome with an error tells what was done before.
func (u Updater) Run(ctx context.Context, machine *v1alpha1.Machine, node **corev1.Node, now time.Time) (Outcome, error) {
	p := &pass{Updater: u, machine: machine, node: node, now: now}
	p.Misplaced = read(*node).Check(machine).Message
	err := p.run(ctx)
	return p.Outcome, client.IgnoreNotFound(err) // a node that is gone is not updated
}

func (p *pass) run(ctx context.Context) error {
	if err := p.advance(ctx); err != nil {
		return err
	}
	if read(*p.node).drains(p.phase()) {
		return p.drain(ctx)
	}
	p.conclude()
	return nil
}

func (p *pass) phase() v1alpha1.MachinePhase { return p.machine.Status.CurrentStatus.Phase }

// advance writes the conditions that follow from each other.
func (p *pass) advance(ctx context.Context) error {
	for {
		before := read(*p.node)
		reason := before.next(p.phase())
		if reason == "" {
			return nil
		}
		condition, news := before.conditionWith(reason, p.now)
		if !news {
			return nil
		}
		err := p.Nodes.PatchStatus(ctx, p.Target, p.node, func(node *corev1.Node) { set(node, condition) })
		if err != nil {
			return err
		}
		p.announce(reason)
	}
}

func set(node *corev1.Node, condition corev1.NodeCondition) {
	i := slices.IndexFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == condition.Type })
	if i < 0 {
		node.Status.Conditions = append(node.Status.Conditions, condition)
		return
	}
	node.Status.Conditions[i] = condition
}

func (p *pass) tell(kind, reason, cause, format string, args ...any) {
	p.Events = append(p.Events, Event{Kind: kind, Reason: reason, Cause: cause, Message: fmt.Sprintf(format, args...)})
}

// announce tells of a condition that was written. Results are told of with the phase.
func (p *pass) announce(reason string) {
	switch reason {
	case v1alpha1.SelectedForUpdate:
		p.tell(corev1.EventTypeNormal, ReasonSelected, "", "Node %s is selected for an in-place update, and is drained before", (*p.node).Name)
	case v1alpha1.ReadyForUpdate:
		p.tell(corev1.EventTypeNormal, ReasonReady, "", "Node %s is drained and waits for its agent to update it", (*p.node).Name)
	}
}

// drain cordons and drains the node. Once it is empty the Machine is InPlaceUpdating, and the condition
// follows when that is stored.
func (p *pass) drain(ctx context.Context) error {
	err := p.Nodes.Patch(ctx, p.Target, p.node, func(node *corev1.Node) error {
		node.Spec.Unschedulable = true
		return nil
	})
	if err != nil {
		return err
	}
	report := drain.Report{Done: true}
	if p.Drainer != nil {
		if report, err = p.ask(ctx); err != nil {
			return err
		}
	}
	p.noteForced(report)
	p.Problem = report.Problem()
	p.Wake = report.Wait
	switch {
	case report.NodeGone:
	case report.Done && p.Problem == "":
		p.drained()
	case report.Done: // it was forced, and begins anew
		p.Wake = forcedRetry
		p.Drainer.Forget(client.ObjectKeyFromObject(p.machine))
		fallthrough
	default:
		p.waits()
	}
	return nil
}

// forcedRetry is when a forced drain that failed begins anew.
const forcedRetry = 5 * time.Second

func (p *pass) ask(ctx context.Context) (drain.Report, error) {
	timed := draintime.OfUpdate(p.machine, read(*p.node).Condition.LastTransitionTime.Time)
	timing, err := p.Timer.Read(ctx, timed, (*p.node).Status.Conditions, p.now)
	if err != nil {
		return drain.Report{}, err
	}
	p.Timing = timing
	return p.Drainer.Drain(ctx, drain.Request{
		Machine: client.ObjectKeyFromObject(p.machine), Node: (*p.node).Name,
		Since: timing.Since, Force: timing.Force,
		Timeout:         timeouts.Drain(p.machine, p.Timer.Timeout).Duration,
		MaxEvictRetries: timeouts.MaxEvictRetries(p.machine, p.MaxEvictRetries),
	})
}

func (p *pass) noteForced(report drain.Report) {
	if pods := report.Forced(); pods != "" {
		p.tell(corev1.EventTypeWarning, reasonForced, v1alpha1.CauseDrainForced, "Deleted without regard to pod disruption budgets: %s", pods)
	}
}

func (p *pass) drained() {
	if p.Drainer != nil {
		p.Drainer.Forget(client.ObjectKeyFromObject(p.machine)) // the node will have other pods
	}
	p.move(v1alpha1.MachineInPlaceUpdating, v1alpha1.MachineStateProcessing, fmt.Sprintf("Machine %s is undergoing an in-place update", p.machine.Name))
}

// waits records why a drain does not get on, and later that it does. Others than Running say in their
// last operation why they are not.
func (p *pass) waits() {
	failing := p.machine.Status.LastOperation.Type == v1alpha1.MachineOperationDrainNode
	if p.phase() != v1alpha1.MachineRunning || p.Problem == "" && !failing {
		return
	}
	p.Operation = v1alpha1.LastOperation{
		Type: v1alpha1.MachineOperationDrainNode, State: v1alpha1.MachineStateProcessing,
		Description: "Draining the node before its in-place update",
	}
	if p.Problem != "" {
		p.Operation.Description = fmt.Sprintf("Drain failed due to - %s. Will retry in next sync.", p.Problem)
	}
}

func (p *pass) move(phase v1alpha1.MachinePhase, state v1alpha1.MachineState, description string) {
	if phase != p.phase() {
		p.Phase = phase
	}
	p.Operation = v1alpha1.LastOperation{Type: v1alpha1.MachineOperationInPlaceUpdate, State: state, Description: description}
}

// conclude moves the Machine by the result of the agent.
func (p *pass) conclude() {
	n := read(*p.node)
	if !UpdatePhase(p.phase()) {
		return
	}
	switch n.Result {
	case v1alpha1.LabelValueNodeUpdateSuccessful:
		description := fmt.Sprintf("Machine %s successfully updated dependencies", p.machine.Name)
		p.move(v1alpha1.MachineInPlaceUpdateSuccessful, v1alpha1.MachineStateSuccessful, description)
		p.tell(corev1.EventTypeNormal, ReasonSuccessful, "", "%s", description)
	case v1alpha1.LabelValueNodeUpdateFailed:
		p.failed(n.FailureReason)
	}
}

// failed records what the agent says, also if its time was over before.
func (p *pass) failed(why string) {
	description := fmt.Sprintf("Machine %s failed to update dependencies", p.machine.Name)
	if why != "" {
		description += ": " + why
	}
	last := p.machine.Status.LastOperation
	p.move(v1alpha1.MachineInPlaceUpdateFailed, v1alpha1.MachineStateFailed, description)
	p.Operation.LastUpdateTime = last.LastUpdateTime
	if p.Phase == "" && (last.Type != p.Operation.Type || last == p.Operation) { // others have said more since, or it is no news
		p.Operation = v1alpha1.LastOperation{}
		return
	}
	p.tell(corev1.EventTypeWarning, ReasonFailed, "", "%s", description)
}

// TimedOut is the outcome of an update that took too long.
func TimedOut(machine *v1alpha1.Machine, timeout time.Duration) Outcome {
	p := &pass{machine: machine}
	p.move(v1alpha1.MachineInPlaceUpdateFailed, v1alpha1.MachineStateFailed,
		fmt.Sprintf("Machine %s has not been updated in place within %v. Updating machine phase to InPlaceUpdateFailed", machine.Name, timeout))
	p.tell(corev1.EventTypeWarning, ReasonFailed, "", "%s", p.Operation.Description)
	return p.Outcome
}
