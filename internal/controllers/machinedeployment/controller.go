// Package machinedeployment keeps the Machines of MachineDeployments, by way of MachineSets: one for
// the current template, and those of earlier templates until their Machines are replaced.
//
// A pass gathers facts, plans operations (package rollout), applies them, and derives the status from
// the facts and the outcome (package status). Each operation carries its reason into an event and a
// log line.
package machinedeployment

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
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
	// Client of the control cluster; reads come from the cache.
	Client client.Client
	// Live reads from the API server before sets without a controller are adopted. Nil: none is adopted.
	Live client.Reader
	// Machines finds the Machines of a set. Nil: by listing them with Client.
	Machines fieldindex.Machines
	// Events explains to users what was done.
	Events record.EventRecorder
	Clock  clock.PassiveClock
	// Concurrency is how many deployments are reconciled at the same time.
	Concurrency int
	// Target is the cluster that nodes join. Nil: rollouts do not mark nodes, and update none in place.
	Target Target
	// InPlace carries out the strategy InPlaceUpdate.
	InPlace bool
	// ProtectNodes keeps autoscalers from removing nodes during a rolling update.
	ProtectNodes bool
}

// Target is the cluster that nodes join. It need not answer.
type Target interface {
	// Client reads Nodes from a cache and writes to the API server.
	Client() client.Client
	// Ready reports whether the target has answered, so that its cache is filled.
	Ready() bool
	// Watch calls a handler for events of objects like the given one, once the target has answered.
	Watch(object client.Object, events handler.EventHandler, filters ...predicate.Predicate) source.Source
}

// Controller reconciles MachineDeployments. Make one with New.
type Controller struct {
	Options
	edge     edge.Reconciler[*v1alpha1.MachineDeployment]
	memory   expectations.Memory[memory]
	orphaned cascade.Orphaned
}

// memory is what is remembered of a deployment between passes.
type memory struct {
	// deployment, sets, nodes and machines are the versions that were written.
	deployment, sets, nodes, machines expectations.Writes
	// created is the last set that was created, until the cache shows it, and when that was.
	created struct {
		name string
		at   time.Time
	}
	// nodesUnmarked reports whether the nodes have no marks of a rollout or an update in place, and need not
	// be read.
	nodesUnmarked bool
	// mutated spaces out creations of sets that the API server changes. dryRunTells reports whether a dry run
	// has shown that: a webhook may treat it in another way.
	mutated     expectations.Retry
	dryRunTells bool
	// counted is when the status of a deployment that is being deleted was written.
	counted time.Time
	// unanswered is since when candidates for an update in place have waited for the machine controller;
	// zero if none does. A process that starts counts anew.
	unanswered time.Time
}

// New makes a Controller.
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

// SetupWithManager registers the controller and what it watches.
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

// Reconcile brings a deployment closer to its spec.
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

// scope is a pass over a deployment.
type scope struct {
	*Controller
	memory *memory
}

// fresh reports whether the cache shows all that this process wrote to the deployment and its sets. A
// set that is not shown yet cannot be created twice, since its name follows from the template. But for an
// update in place its Machines are to be counted, also if the template changed meanwhile.
func (p scope) fresh(deployment *v1alpha1.MachineDeployment, sets []*v1alpha1.MachineSet) bool {
	stale := func(set *v1alpha1.MachineSet) bool { return !p.memory.sets.Fresh(set) }
	hidden := deployment.Spec.Strategy.Type == v1alpha1.InPlaceUpdateMachineDeploymentStrategyType && p.awaited(sets)
	return !hidden && p.memory.deployment.Fresh(deployment) && !slices.ContainsFunc(sets, stale)
}

// shownWithin is when a set that was created and is not shown counts as deleted by somebody.
const shownWithin = 10 * time.Second

// awaited reports whether the cache does not show yet the set that was created last.
func (p scope) awaited(sets []*v1alpha1.MachineSet) bool {
	created := &p.memory.created
	shown := slices.ContainsFunc(sets, func(set *v1alpha1.MachineSet) bool { return set.Name == created.name })
	if shown || p.Clock.Now().Sub(created.at) > shownWithin {
		created.name = ""
	}
	return created.name != ""
}

// reconcile returns the time to the next pass without an event; 0 is never.
func (p scope) reconcile(ctx context.Context, deployment *v1alpha1.MachineDeployment, sets []*v1alpha1.MachineSet) (time.Duration, error) {
	if !deployment.DeletionTimestamp.IsZero() {
		return p.terminate(ctx, deployment, sets)
	}
	if message := rollout.Invalid(deployment, sets); message != "" {
		_, err := p.writeStatus(ctx, deployment, status.Refused(deployment, v1alpha1.DeploymentReasonInvalid, message, p.Clock.Now()))
		return 0, err
	}
	deployment, err := p.changeFinalizer(ctx, deployment, controllerutil.AddFinalizer)
	if err != nil {
		return 0, err
	}
	if rollout.SelectsAll(deployment) {
		message := "spec.selector: the empty selector selects all machines; nothing is done until it names labels."
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
		return 0, nil // the events of the writes start the next pass, which has the right numbers
	}
	return p.report(ctx, r, outcome)
}

// settle is the least time between two statuses during deletion: sets change often then.
const settle = 100 * time.Millisecond

// held reports whether a deployment has a finalizer of MCM, of today or of old versions.
func held(deployment *v1alpha1.MachineDeployment) bool {
	return controllerutil.ContainsFinalizer(deployment, v1alpha1.FinalizerMCM) || controllerutil.ContainsFinalizer(deployment, v1alpha1.FinalizerLegacy)
}

// terminate deletes the sets, and removes the finalizer when none is left. A deployment that is deleted
// without its sets waits for the garbage collector, which releases them. It returns the time to the
// next pass without an event; 0 is never.
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
	if wait := settle - now.Sub(p.memory.counted); failure == nil && wait > 0 && wait <= settle {
		return wait, nil
	}
	p.memory.counted = now
	_, err := p.writeStatus(ctx, deployment, status.Deleting(rollout.New(rollout.NewFacts(deployment, sets, now)), failure))
	if err != nil {
		return 0, errors.Join(failure, err)
	}
	return 0, edge.Reported(failure)
}

// releaseSets releases the sets that the garbage collector did not know.
func (p scope) releaseSets(ctx context.Context, deployment *v1alpha1.MachineDeployment, sets []*v1alpha1.MachineSet) error {
	var failure error
	for _, set := range sets {
		op := rollout.Operation{Action: rollout.Release, Set: set, Reason: "the machine deployment is deleted without its machine sets"}
		failure = errors.Join(failure, p.release(ctx, deployment, op))
	}
	return failure
}
