// Package preserve carries out the preservation of a Machine on its node.
package preserve

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/machine/draintime"
	"github.com/millwright-dev/millwright/internal/lifecycle/drain"
	"github.com/millwright-dev/millwright/internal/lifecycle/noderef"
	"github.com/millwright-dev/millwright/internal/lifecycle/nodes"
	"github.com/millwright-dev/millwright/internal/lifecycle/preservation"
	"github.com/millwright-dev/millwright/internal/lifecycle/timeouts"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
)

// Keeper preserves Machines.
type Keeper struct {
	// Target is the client of the cluster of the nodes; nil without one.
	Target client.Client
	Nodes  *nodes.Writer
	// Drainer drains nodes; nil if nodes are not drained.
	Drainer draintime.Drainer
	// Timer decides when a drain is forced.
	Timer draintime.Timer
	// MaxEvictRetries is that of the manager's flag.
	MaxEvictRetries int32
}

// Pass is one pass over a Machine.
type Pass struct {
	preservation.Facts
	// Annotate changes annotations of the Machine in the API server.
	Annotate func(ctx context.Context, change func(*v1alpha1.Machine)) error
}

// Outcome is what a pass came to.
type Outcome struct {
	preservation.Plan
	// Node is the node as it was written last; nil if there is none.
	Node *corev1.Node
	// Wake is when to look again at the latest; zero if there is no such time.
	Wake time.Duration
	// Problem is why pods could not be evicted; empty if they could, or need not.
	Problem string
	// Drained reports that this pass finished a drain, and Forced is a sentence if it was forced.
	Drained bool
	Forced  string
}

// Run takes the preservation of a Machine as far as is possible now. The caller stores the expiry, also
// after an error, and last: a crash before repeats what was not finished.
func (k Keeper) Run(ctx context.Context, p Pass) (Outcome, error) {
	if !preservation.Concerns(p.Facts) {
		return Outcome{Node: p.Node}, nil
	}
	done := Outcome{Plan: preservation.Decide(p.Facts), Node: p.Node}
	switch done.Action {
	case preservation.Stop:
		return k.stop(ctx, p, done)
	case preservation.Preserve:
		done.Wake = flow.Sooner(done.Wake, done.Expiry.Sub(p.Now))
		if err := k.annotate(ctx, p, done); err != nil {
			return done, err
		}
		return k.preserve(ctx, p, done)
	}
	if err := k.unmark(ctx, &done, func(node *corev1.Node) {
		if done.Unwish {
			delete(node.Annotations, v1alpha1.AnnotationKeyPreserve)
		}
	}); err != nil {
		return done, err
	}
	return done, k.annotate(ctx, p, done)
}

// annotate stores which annotations count. Before the expiry is stored, they protect the Machine.
func (k Keeper) annotate(ctx context.Context, p Pass, done Outcome) error {
	return p.Annotate(ctx, func(machine *v1alpha1.Machine) {
		set(machine, v1alpha1.AnnotationKeyPreserve, done.Own)
		set(machine, v1alpha1.AnnotationKeyLastAppliedPreserve, done.LastApplied)
	})
}

func set(machine *v1alpha1.Machine, key, value string) {
	if value == "" {
		delete(machine.Annotations, key)
		return
	}
	metav1.SetMetaDataAnnotation(&machine.ObjectMeta, key, value)
}

func (k Keeper) preserve(ctx context.Context, p Pass, done Outcome) (Outcome, error) {
	if done.Node == nil || p.Hidden {
		return done, nil
	}
	failed := p.Machine.Status.CurrentStatus.Phase == v1alpha1.MachineFailed
	err := k.Nodes.Patch(ctx, k.Target, &done.Node, func(node *corev1.Node) error {
		preservation.Mark(node, failed, p.Now)
		return nil
	})
	if err != nil {
		return gone(done, err)
	}
	state := preservation.NotNeeded
	switch {
	case !failed:
	case preservation.Drained(done.Node):
		state = preservation.Earlier
	default:
		if state, err = k.drain(ctx, p, &done); err != nil || state == preservation.NotNeeded {
			return gone(done, err)
		}
	}
	return gone(done, k.Nodes.PatchStatus(ctx, k.Target, &done.Node, func(node *corev1.Node) {
		preservation.SetPreserved(node, done.Plan, state, p.Now)
	}))
}

// drain takes the drain of a node further. While it goes on without problems, it returns NotNeeded.
func (k Keeper) drain(ctx context.Context, p Pass, done *Outcome) (preservation.Drain, error) {
	if k.Drainer == nil {
		return preservation.Done, nil
	}
	machine, key := p.Machine, client.ObjectKeyFromObject(p.Machine)
	begin := machine.Status.CurrentStatus.LastUpdateTime.Time
	if machine.Status.CurrentStatus.PreserveExpiryTime == nil {
		begin = p.Now // as the expiry will be set
	}
	read, err := k.Timer.Read(ctx, draintime.OfPreserved(machine, begin), done.Node.Status.Conditions, p.Now)
	if err != nil {
		return preservation.NotNeeded, err
	}
	report, err := k.Drainer.Drain(ctx, drain.Request{
		Machine: key, Node: done.Node.Name, Since: read.Since, Force: read.Force,
		Timeout:         timeouts.Drain(machine, k.Timer.Timeout).Duration,
		MaxEvictRetries: timeouts.MaxEvictRetries(machine, k.MaxEvictRetries),
	})
	if err != nil {
		return preservation.NotNeeded, err
	}
	done.Wake = flow.Sooner(done.Wake, read.Wake)
	done.Problem = report.Problem()
	switch {
	case report.Done:
		k.Drainer.Forget(key) // of the drain before the deletion, nothing is known yet
		done.Drained = true
		if report.Force != drain.NotForced && !report.NodeGone {
			done.Forced = fmt.Sprintf("The drain of node %s was forced: %s", done.Node.Name, report.Force)
		}
		return preservation.Done, nil
	case done.Problem != "":
		done.Wake = flow.Sooner(done.Wake, report.Wait)
		return preservation.Failing, nil
	}
	done.Wake = flow.Sooner(done.Wake, report.Wait)
	return preservation.NotNeeded, nil
}

// stop ends a preservation. The condition of the node comes after its other marks, since it says that
// all is done.
func (k Keeper) stop(ctx context.Context, p Pass, done Outcome) (Outcome, error) {
	err := k.unmark(ctx, &done, func(node *corev1.Node) { preservation.Unmark(node, done.Unwish) })
	if err == nil && done.Node != nil {
		err = client.IgnoreNotFound(k.Nodes.PatchStatus(ctx, k.Target, &done.Node, func(node *corev1.Node) { preservation.SetStopped(node, p.Now) }))
	}
	if err == nil {
		err = k.annotate(ctx, p, done)
	}
	if err != nil {
		done.Expiry = p.Machine.Status.CurrentStatus.PreserveExpiryTime // it is not over
		return done, err
	}
	if k.Drainer != nil {
		k.Drainer.Forget(client.ObjectKeyFromObject(p.Machine))
	}
	return done, nil
}

func (k Keeper) unmark(ctx context.Context, done *Outcome, change func(*corev1.Node)) error {
	if done.Node == nil {
		return nil
	}
	return client.IgnoreNotFound(k.Nodes.Patch(ctx, k.Target, &done.Node, func(node *corev1.Node) error {
		change(node)
		return nil
	}))
}

// gone ignores that the node does not exist any more.
func gone(done Outcome, err error) (Outcome, error) { return done, client.IgnoreNotFound(err) }

// Conditions returns the Machine's conditions with the node's condition Preserved.
func Conditions(machine []corev1.NodeCondition, node *corev1.Node) []corev1.NodeCondition {
	if node == nil {
		return machine
	}
	is, was := noderef.Condition(node.Status.Conditions, v1alpha1.NodePreserved), noderef.Condition(machine, v1alpha1.NodePreserved)
	switch {
	case is == nil || was != nil && preservation.Same(*is, *was):
		return machine
	case was == nil:
		return append(slices.Clone(machine), *is)
	}
	next := slices.Clone(machine)
	*noderef.Condition(next, v1alpha1.NodePreserved) = *is
	return next
}
