// Package machinedeployment keeps the Machines of a MachineDeployment by way of
// MachineSets: one for the current template, and those of earlier templates until
// their Machines are replaced.
//
// A pass gathers the facts, plans operations from them in pure functions, and applies
// those. Each operation carries its reason into an event and a log line. Before sets are
// scaled, the Machines that go first are marked, and as far as possible the nodes.
package machinedeployment

import (
	"context"
	"errors"
	"fmt"
	"sync"
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
	"github.com/millwright-dev/millwright/internal/reconcile/expectations"
	"github.com/millwright-dev/millwright/internal/reconcile/fieldindex"
)

// Options configure a Controller.
type Options struct {
	// Client of the control cluster; reads come from the cache.
	Client client.Client
	// Live reads from the API server. It is asked before the first deployment of a namespace is
	// worked on, and before sets that nothing controls are adopted; if it is nil, the cache is
	// taken for up to date from the start, and no set is adopted.
	Live client.Reader
	// Machines finds those of a set. Nil: by listing them with Client.
	Machines fieldindex.Machines
	// Events explains to users what was done.
	Events record.EventRecorder
	// Clock tells the time.
	Clock clock.PassiveClock
	// Concurrency is how many deployments are looked at at the same time.
	Concurrency int
	// Target is where nodes join; nil if nowhere. Without it, rollouts do not mark nodes.
	Target Target
	// ProtectNodes keeps autoscalers from removing nodes during a rolling update. The
	// zero value does not.
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
	written expectations.Ledger
	// writtenSets is the same for the sets of all deployments, and nodes for the nodes of
	// the target.
	writtenSets, nodes expectations.Ledger
	first              baselines
	// unmarked are the keys of deployments whose nodes were seen to bear no marks of a
	// rollout, and that had none since. To forget it costs a look at the nodes.
	unmarked sync.Map
	// counted is when the status of a deployment that is being deleted was written, by its key.
	counted sync.Map
	// orphaned holds the UIDs of deployments that are deleted without their sets.
	orphaned sync.Map
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
		Watches(&v1alpha1.MachineSet{}, handler.EnqueueRequestsFromMapFunc(c.deploymentsOf)).
		Watches(&v1alpha1.Machine{}, handler.EnqueueRequestsFromMapFunc(c.deploymentOf), builder.WithPredicates(markedChanges())).
		Watches(&v1alpha1.MachineDeployment{}, handler.EnqueueRequestsFromMapFunc(c.concerned), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&v1alpha1.MachineDeployment{}, c.deletions()).
		WithOptions(controller.Options{MaxConcurrentReconciles: c.Concurrency, RateLimiter: expectations.RateLimiter()}).
		Complete(c)
	if err != nil {
		return fmt.Errorf("setting up the machine deployment controller: %w", err)
	}
	return nil
}

// staleCache is how long a pass waits for the cache to show what this process wrote
// itself. The event of that write comes first.
const staleCache = time.Second

// targetAway is how long a pass waits for a target that does not answer, if there are nodes
// to mark.
const targetAway = 5 * time.Second

// Reconcile brings a deployment closer to what is asked for.
func (c *Controller) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	deployment := &v1alpha1.MachineDeployment{}
	if err := c.Client.Get(ctx, req.NamespacedName, deployment); err != nil {
		if apierrors.IsNotFound(err) {
			c.written.Forget(req.NamespacedName)
			c.unmarked.Delete(req.NamespacedName)
			c.counted.Delete(req.NamespacedName)
		}
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	sets, err := c.sets(ctx, deployment.Namespace, string(deployment.UID))
	if err != nil {
		return ctrl.Result{}, err
	}
	if shown, err := c.caughtUp(ctx, deployment, sets); err != nil {
		return ctrl.Result{}, err
	} else if !shown || !c.fresh(deployment, sets) {
		return ctrl.Result{RequeueAfter: staleCache}, nil
	}
	again, err := c.reconcile(ctx, deployment, sets)
	if outrun(err) {
		return ctrl.Result{RequeueAfter: staleCache}, nil
	}
	if err != nil {
		return ctrl.Result{}, err
	}
	return ctrl.Result{RequeueAfter: again}, nil
}

// outrun reports whether an error means that the world has moved on, of which the cache
// will tell. That is not for users to read.
func outrun(err error) bool {
	return expectations.Conflict(err) || errors.Is(err, errCacheBehind)
}

// fresh reports whether the cache shows all that this process wrote to the deployment and
// its sets. A set that was created and is not seen yet is looked for by its name, which
// follows from the template: creating it twice is impossible.
func (c *Controller) fresh(deployment *v1alpha1.MachineDeployment, sets []*v1alpha1.MachineSet) bool {
	if !c.written.Fresh(deployment) {
		return false
	}
	for _, set := range sets {
		if !c.writtenSets.Fresh(set) {
			return false
		}
	}
	return true
}

// reconcile returns after what time to look again without an event; 0 is never.
func (c *Controller) reconcile(ctx context.Context, deployment *v1alpha1.MachineDeployment, sets []*v1alpha1.MachineSet) (time.Duration, error) {
	if !deployment.DeletionTimestamp.IsZero() {
		return c.terminate(ctx, deployment, sets)
	}
	if sentence := problem(deployment, sets); sentence != "" {
		return 0, c.writeStatus(ctx, deployment, refusal(deployment, reasonInvalid, sentence, c.Clock.Now()))
	}
	if err := c.addFinalizer(ctx, deployment); err != nil {
		return 0, err
	}
	if selectsAll(deployment) {
		sentence := "spec.selector: the empty selector selects all machines; nothing is done until it names labels."
		return 0, c.writeStatus(ctx, deployment, observed(refusal(deployment, reasonSelectsAll, sentence, c.Clock.Now()), deployment))
	}
	facts := gather(deployment, sets, c.Clock.Now())
	if err := c.look(ctx, &facts); err != nil {
		return 0, err
	}
	ends, failure := c.carryOut(ctx, &facts)
	if ends {
		return 0, nil // the events of what was written come; what would be counted now is not right
	}
	if failure == nil {
		failure = c.record(ctx, facts)
	}
	if outrun(failure) {
		return 0, failure
	}
	next := nextStatus(facts, failure)
	if err := c.writeStatus(ctx, deployment, next); err != nil {
		return 0, err
	}
	return sooner(facts.again, deadlineIn(facts, next)), errors.Join(failure, whyUnmarked(facts))
}

// sooner is the shorter of two times, of which 0 is never.
func sooner(a, b time.Duration) time.Duration {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}
