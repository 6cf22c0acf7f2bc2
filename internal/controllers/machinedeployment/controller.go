// Package machinedeployment reconciles MachineDeployments. It manages their Machines through MachineSets: one set
// for the current template, and the sets of previous templates until their Machines are replaced.
//
// A pass gathers facts, plans operations (package rollout), applies them, and derives the status from the facts and
// the outcome (package status). Each operation has a reason, which appears in an event and a log line.
package machinedeployment

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/rollout"
	"github.com/millwright-dev/millwright/internal/pool/rollout/status"
	"github.com/millwright-dev/millwright/internal/reconcile/apierror"
	"github.com/millwright-dev/millwright/internal/reconcile/cascade"
	"github.com/millwright-dev/millwright/internal/reconcile/cascade/orphaning"
	"github.com/millwright-dev/millwright/internal/reconcile/edge"
	"github.com/millwright-dev/millwright/internal/reconcile/expectations"
	"github.com/millwright-dev/millwright/internal/reconcile/fieldindex"
)

// Options configure a Controller.
type Options struct {
	// Client is the client of the control cluster. It reads from the cache.
	Client client.Client
	// Live reads from the API server before sets without a controller are adopted. If nil, no set is adopted.
	Live client.Reader
	// Machines finds the Machines of a set. If nil, they are listed with Client.
	Machines fieldindex.Machines
	// Events records events on deployments.
	Events record.EventRecorder
	Clock  clock.PassiveClock
	// Concurrency is the number of deployments that are reconciled at the same time.
	Concurrency int
	// Target is the cluster that nodes join. If nil, rollouts do not mark nodes, and do not update nodes in
	// place.
	Target Target
	// InPlace enables the strategy InPlaceUpdate.
	InPlace bool
	// ProtectNodes keeps autoscalers from removing nodes during a rolling update.
	ProtectNodes bool
}

// Target is the cluster that nodes join. It may be unavailable.
type Target interface {
	// Client reads Nodes from a cache and writes to the API server.
	Client() client.Client
	// Ready reports whether the target has responded and its cache is filled.
	Ready() bool
	// Watch calls a handler for events of objects of the given kind, after the target has responded.
	Watch(object client.Object, events handler.EventHandler, filters ...predicate.Predicate) source.Source
}

// Controller reconciles MachineDeployments. Create one with New.
type Controller struct {
	Options
	edge     edge.Reconciler[*v1alpha1.MachineDeployment]
	memory   expectations.Memory[memory]
	orphaned cascade.Orphaned
}

// memory is the state that is kept between the passes over a deployment.
type memory struct {
	// deployment, sets, nodes and machines track writes, to detect a stale cache.
	deployment, sets, nodes, machines expectations.Writes
	// created is the set that was created last: its name until the cache contains it, its UID and its creation time.
	created struct {
		name string
		uid  types.UID
		at   time.Time
	}
	// nodesUnmarked reports that the nodes have no marks of a rollout or an in-place update, so that they need
	// not be read.
	nodesUnmarked bool
	// mutated delays creations of sets after the API server changed a new set. dryRunDetects reports that a
	// dry run has detected the change. A webhook may treat a dry run differently.
	mutated       expectations.Retry
	dryRunDetects bool
	// counted is when the status of a deployment that is being deleted was written.
	counted time.Time
	// waitingSince is when the first candidate for an in-place update began to wait for the machine
	// controller; zero if no candidate waits. A new process starts the time again.
	waitingSince time.Time
}

// New creates a Controller.
func New(opts Options) *Controller {
	if opts.Machines == nil {
		opts.Machines = fieldindex.Listed(opts.Client)
	}
	c := &Controller{Options: opts}
	c.edge = edge.Reconciler[*v1alpha1.MachineDeployment]{
		Reader: c.Client, Kind: &v1alpha1.MachineDeployment{}, Pass: c.pass, Forget: c.memory.Forget, Events: c.Events,
	}
	return c
}

// SetupWithManager registers the controller and its watches.
func (c *Controller) SetupWithManager(mgr ctrl.Manager) error {
	build := ctrl.NewControllerManagedBy(mgr).
		Named("machinedeployment").
		For(&v1alpha1.MachineDeployment{}).
		Watches(&v1alpha1.MachineSet{}, handler.EnqueueRequestsFromMapFunc(c.ofSet)).
		Watches(&v1alpha1.Machine{}, handler.EnqueueRequestsFromMapFunc(c.ofMachine), builder.WithPredicates(machineChanges())).
		Watches(&v1alpha1.MachineDeployment{}, handler.EnqueueRequestsFromMapFunc(c.overlapping), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&v1alpha1.MachineDeployment{}, c.orphaned.Handler()).
		WithOptions(controller.Options{MaxConcurrentReconciles: c.Concurrency, RateLimiter: expectations.RateLimiter()})
	if c.Target != nil && c.InPlace {
		build.WatchesRawSource(c.Target.Watch(&corev1.Node{}, handler.EnqueueRequestsFromMapFunc(c.ofNode), nodeChanges()))
	}
	if err := build.Complete(c); err != nil {
		return fmt.Errorf("setting up the machine deployment controller: %w", err)
	}
	return nil
}

// Reconcile runs one pass over a deployment.
func (c *Controller) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	return c.edge.Reconcile(ctx, req)
}

func (c *Controller) pass(ctx context.Context, deployment *v1alpha1.MachineDeployment) (time.Duration, error) {
	sets, err := c.sets(ctx, deployment.Namespace, string(deployment.UID))
	if err != nil {
		return 0, err
	}
	p := scope{Controller: c, memory: c.memory.Of(client.ObjectKeyFromObject(deployment))}
	if !p.fresh(deployment, sets) {
		return 0, edge.ErrStale
	}
	return p.reconcile(ctx, deployment, sets)
}

// scope is the state of one pass over a deployment.
type scope struct {
	*Controller
	memory *memory
}

// fresh reports whether the cache contains all writes of this process to the deployment and its sets. In general,
// it need not contain a new set, which cannot be created twice since its name follows from the template. During an
// in-place update, however, the Machines of that set must be counted, even if the template changed meanwhile.
func (p scope) fresh(deployment *v1alpha1.MachineDeployment, sets []*v1alpha1.MachineSet) bool {
	stale := func(set *v1alpha1.MachineSet) bool { return !p.memory.sets.Fresh(set) }
	hidden := deployment.Spec.Strategy.Type == v1alpha1.InPlaceUpdateMachineDeploymentStrategyType && p.awaited(sets)
	return !hidden && p.memory.deployment.Fresh(deployment) && !slices.ContainsFunc(sets, stale)
}

// shownWithin is the time after which a new set that the cache does not contain counts as deleted.
const shownWithin = 10 * time.Second

// awaited reports whether the cache does not contain yet the set that was created last.
func (p scope) awaited(sets []*v1alpha1.MachineSet) bool {
	created := &p.memory.created
	shown := slices.ContainsFunc(sets, func(set *v1alpha1.MachineSet) bool { return set.Name == created.name })
	if shown || p.Clock.Now().Sub(created.at) > shownWithin {
		created.name = ""
	}
	return created.name != ""
}

// reconcile returns the time until the next pass. If it is zero, only an event triggers one.
func (p scope) reconcile(ctx context.Context, deployment *v1alpha1.MachineDeployment, sets []*v1alpha1.MachineSet) (time.Duration, error) {
	if !deployment.DeletionTimestamp.IsZero() {
		return p.terminate(ctx, deployment, sets)
	}
	if message := rollout.Invalid(deployment, sets); message != "" {
		_, err := p.writeStatus(ctx, deployment, status.Refused(deployment, v1alpha1.DeploymentReasonInvalid, message, p.Clock.Now()))
		return 0, err
	}
	deployment, err := p.register(ctx, deployment)
	if err != nil {
		return 0, err
	}
	if rollout.SelectsAll(deployment) {
		message := "spec.selector: the empty selector selects all machines; add labels to it."
		refused := status.Refused(deployment, v1alpha1.DeploymentReasonSelectsAll, message, p.Clock.Now())
		refused.ObservedGeneration = deployment.Generation
		_, err := p.writeStatus(ctx, deployment, refused)
		return 0, err
	}
	r, err := p.gather(ctx, deployment, sets)
	if err != nil {
		return 0, err
	}
	if err := p.stillMutated(ctx, r); err != nil {
		return p.report(ctx, r, rollout.Outcome{Failure: err})
	}
	plan := rollout.Plan(r)
	p.memory.nodesUnmarked = !r.MarksNodes && !r.NeedsNodes && (p.memory.nodesUnmarked || r.NodesUnmarked(plan))
	outcome := p.apply(ctx, r, plan)
	if outcome.Ended && outcome.Failure == nil {
		return 0, nil // the events of the writes trigger the next pass, which has the new numbers
	}
	return p.report(ctx, r, outcome)
}

// deletionStatusInterval is the minimum time between two status updates during a deletion, when sets change often.
const deletionStatusInterval = 100 * time.Millisecond

// held reports whether a deployment has a finalizer of MCM or of its old versions.
func held(deployment *v1alpha1.MachineDeployment) bool {
	return controllerutil.ContainsFinalizer(deployment, v1alpha1.FinalizerMCM) || controllerutil.ContainsFinalizer(deployment, v1alpha1.FinalizerLegacy)
}

// terminate deletes the sets, and removes the finalizer when no set remains. If the deployment is deleted without
// its sets, it waits for the garbage collector, which releases them. It returns the time until the next pass, like
// reconcile.
func (p scope) terminate(ctx context.Context, deployment *v1alpha1.MachineDeployment, sets []*v1alpha1.MachineSet) (time.Duration, error) {
	switch {
	case orphaning.Pending(deployment):
		return 0, nil
	case len(sets) == 0 && held(deployment):
		_, err := p.changeFinalizer(ctx, deployment, controllerutil.RemoveFinalizer)
		return 0, apierror.IgnoreGone(err)
	case p.orphaned.Has(deployment):
		return 0, p.releaseSets(ctx, deployment, sets)
	}
	var failure error
	for _, set := range sets {
		if set.DeletionTimestamp.IsZero() {
			failure = errors.Join(failure, p.deleteSet(ctx, set))
		}
	}
	if edge.Outdated(failure) {
		return 0, failure
	}
	now := p.Clock.Now()
	if wait := deletionStatusInterval - now.Sub(p.memory.counted); failure == nil && wait > 0 && wait <= deletionStatusInterval {
		return wait, nil
	}
	p.memory.counted = now
	_, err := p.writeStatus(ctx, deployment, status.Deleting(rollout.New(rollout.NewFacts(deployment, sets, now)), failure))
	if err != nil {
		return 0, errors.Join(failure, err)
	}
	return 0, edge.Reported(failure)
}

// releaseSets releases the sets that the garbage collector missed.
func (p scope) releaseSets(ctx context.Context, deployment *v1alpha1.MachineDeployment, sets []*v1alpha1.MachineSet) error {
	var failure error
	for _, set := range sets {
		op := rollout.Operation{Action: rollout.Release, Set: set, Reason: "the machine deployment is being deleted without its machine sets"}
		failure = errors.Join(failure, p.release(ctx, deployment, op))
	}
	return failure
}
