// Package machinedeployment keeps the Machines of MachineDeployments, by way of MachineSets: one for
// the current template, and those of earlier templates until their Machines are replaced.
//
// A pass gathers facts, plans operations (package planner), applies them, and derives the status from
// the facts and the outcome (package status). Each operation carries its reason into an event and a
// log line.
package machinedeployment

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/machinedeployment/planner"
	"github.com/millwright-dev/millwright/internal/controllers/machinedeployment/status"
	"github.com/millwright-dev/millwright/internal/reconcile/apierror"
	"github.com/millwright-dev/millwright/internal/reconcile/cascade"
	"github.com/millwright-dev/millwright/internal/reconcile/expectations"
	"github.com/millwright-dev/millwright/internal/reconcile/fieldindex"
)

// Options configure a Controller.
type Options struct {
	// Client of the control cluster; reads come from the cache.
	Client client.Client
	// Live reads from the API server, before sets without a controller are adopted. If it is nil, none
	// is adopted.
	Live client.Reader
	// Machines finds those of a set. Nil: by listing them with Client.
	Machines fieldindex.Machines
	// Events explains to users what was done.
	Events record.EventRecorder
	// Clock tells the time.
	Clock clock.PassiveClock
	// Concurrency is how many deployments are worked on at the same time.
	Concurrency int
	// Target is where nodes join; nil if nowhere. Without it, rollouts do not mark nodes.
	Target Target
	// ProtectNodes keeps autoscalers from removing nodes during a rolling update.
	ProtectNodes bool
}

// Target is the cluster that nodes join, as target.Cluster is one. It need not answer.
type Target interface {
	// Client reads Nodes from a cache and writes to the API server.
	Client() client.Client
	// Ready reports whether the target has answered, so that its cache means something.
	Ready() bool
}

// Controller reconciles MachineDeployments. Make one with New.
type Controller struct {
	Options
	memory   expectations.Memory[memory]
	orphaned cascade.Orphaned
}

// memory is what is remembered of a deployment between passes.
type memory struct {
	// deployment, sets and nodes are the versions that were written.
	deployment, sets, nodes expectations.Writes
	// nodesUnmarked reports whether the nodes were seen without marks of a rollout, and no rollout
	// has begun since. It saves reading the nodes.
	nodesUnmarked bool
	// mutated reports whether the API server changed the template of the last new set.
	mutated bool
	// counted is when the status was written while the deployment is being deleted.
	counted time.Time
}

// New makes a Controller.
func New(opts Options) *Controller {
	if opts.Machines == nil {
		opts.Machines = fieldindex.Listed(opts.Client)
	}
	return &Controller{Options: opts}
}

// SetupWithManager registers the controller and what it watches.
func (c *Controller) SetupWithManager(mgr ctrl.Manager) error {
	err := ctrl.NewControllerManagedBy(mgr).
		Named("machinedeployment").
		For(&v1alpha1.MachineDeployment{}).
		Watches(&v1alpha1.MachineSet{}, handler.EnqueueRequestsFromMapFunc(c.ofSet)).
		Watches(&v1alpha1.Machine{}, handler.EnqueueRequestsFromMapFunc(c.ofMachine), builder.WithPredicates(markedChanges())).
		Watches(&v1alpha1.MachineDeployment{}, handler.EnqueueRequestsFromMapFunc(c.overlapping), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&v1alpha1.MachineDeployment{}, c.orphaned.Handler()).
		WithOptions(controller.Options{MaxConcurrentReconciles: c.Concurrency, RateLimiter: expectations.RateLimiter()}).
		Complete(c)
	if err != nil {
		return fmt.Errorf("setting up the machine deployment controller: %w", err)
	}
	return nil
}

const (
	// staleCache is how long a pass waits for the cache to show what this process wrote. The event of
	// that write comes first.
	staleCache = time.Second
	// targetAway is how long a pass waits for a target that does not answer, if there are nodes to mark.
	targetAway = 5 * time.Second
)

// errCacheBehind says that the cache does not show yet what exists.
var errCacheBehind = errors.New("the cache is behind")

// Reconcile brings a deployment closer to its goal.
func (c *Controller) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	deployment := &v1alpha1.MachineDeployment{}
	if err := c.Client.Get(ctx, req.NamespacedName, deployment); err != nil {
		if apierrors.IsNotFound(err) {
			c.memory.Forget(req.NamespacedName)
		}
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	sets, err := c.sets(ctx, deployment.Namespace, string(deployment.UID))
	if err != nil {
		return ctrl.Result{}, err
	}
	p := pass{Controller: c, memory: c.memory.Of(req.NamespacedName)}
	if !p.fresh(deployment, sets) {
		return ctrl.Result{RequeueAfter: staleCache}, nil
	}
	again, err := p.reconcile(ctx, deployment, sets)
	switch {
	case outdated(err):
		return ctrl.Result{RequeueAfter: staleCache}, nil
	case err != nil:
		return ctrl.Result{}, err
	}
	return ctrl.Result{RequeueAfter: again}, nil
}

// outdated reports whether an error means that the pass read an old state, as the cache will show.
// Users are not told.
func outdated(err error) bool { return apierror.Conflict(err) || errors.Is(err, errCacheBehind) }

// pass is one pass over a deployment.
type pass struct {
	*Controller
	memory *memory
}

// fresh reports whether the cache shows all that this process wrote to the deployment and its sets. A
// set that was created and is not shown yet is found by its name, which follows from the template:
// creating it twice is impossible.
func (p pass) fresh(deployment *v1alpha1.MachineDeployment, sets []*v1alpha1.MachineSet) bool {
	if !p.memory.deployment.Fresh(deployment) {
		return false
	}
	for _, set := range sets {
		if !p.memory.sets.Fresh(set) {
			return false
		}
	}
	return true
}

// reconcile returns after what time to look again without an event; 0 is never.
func (p pass) reconcile(ctx context.Context, deployment *v1alpha1.MachineDeployment, sets []*v1alpha1.MachineSet) (time.Duration, error) {
	if !deployment.DeletionTimestamp.IsZero() {
		return p.terminate(ctx, deployment, sets)
	}
	if message := planner.Invalid(deployment, sets); message != "" {
		_, err := p.writeStatus(ctx, deployment, status.Refused(deployment, v1alpha1.DeploymentReasonInvalid, message, p.Clock.Now()))
		return 0, err
	}
	deployment, err := p.addFinalizer(ctx, deployment)
	if err != nil {
		return 0, err
	}
	if planner.SelectsAll(deployment) {
		message := "spec.selector: the empty selector selects all machines; nothing is done until it names labels."
		refused := status.Refused(deployment, v1alpha1.DeploymentReasonSelectsAll, message, p.Clock.Now())
		refused.ObservedGeneration = deployment.Generation
		_, err := p.writeStatus(ctx, deployment, refused)
		return 0, err
	}
	facts, err := p.gather(ctx, deployment, sets)
	if err != nil {
		return 0, err
	}
	if err := p.stillMutated(ctx, facts); err != nil {
		return p.report(ctx, facts, planner.Outcome{Failure: err})
	}
	plan := planner.Plan(facts)
	p.memory.nodesUnmarked = !planner.MarksNodes(facts) && (p.memory.nodesUnmarked || planner.NodesUnmarked(facts, plan))
	outcome := p.apply(ctx, facts, plan)
	if outcome.Ended && outcome.Failure == nil {
		return 0, nil // the events of what was written come; what would be counted now is not right
	}
	return p.report(ctx, facts, outcome)
}

// report writes what there is to say of a pass. What the deployment's metadata say comes first. But if
// a rollout begins, its status comes first: the revision in the metadata tells which set a status was
// about.
func (p pass) report(ctx context.Context, f planner.Facts, o planner.Outcome) (again time.Duration, err error) {
	after, begins := f.After(o), o.Created != nil || o.Reused(f)
	deployment := after.Deployment
	if o.Failure == nil && !begins {
		deployment, o.Failure = p.annotate(ctx, after, deployment)
	}
	if outdated(o.Failure) {
		return 0, o.Failure
	}
	next := status.Next(f, o)
	deployment, err = p.writeStatus(ctx, deployment, next)
	if err != nil {
		return 0, err
	}
	if o.Failure == nil && begins {
		_, o.Failure = p.annotate(ctx, after, deployment)
	}
	return lookAgain(f, o, next), errors.Join(o.Failure, o.MarkError())
}

// lookAgain returns the time to the next pass without an event; 0 is never.
func lookAgain(f planner.Facts, o planner.Outcome, next v1alpha1.MachineDeploymentStatus) (again time.Duration) {
	times := []time.Duration{planner.ProtectedFor(f), status.DeadlineIn(f, next)}
	if f.TargetAway || o.NodesLater {
		times = append(times, targetAway)
	}
	if f.Nodes != nil && f.Nodes.Stale {
		times = append(times, staleCache)
	}
	for _, in := range times {
		if again == 0 || in > 0 && in < again {
			again = in
		}
	}
	return again
}
