// Package machinedeployment keeps the Machines of a MachineDeployment by way of
// MachineSets: one for the current template, and those of earlier templates until
// their Machines are replaced.
//
// A pass gathers the facts, plans operations from them in pure functions, and applies
// those. Each operation carries its reason into an event and a log line.
package machinedeployment

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/freshness"
	"github.com/millwright-dev/millwright/internal/validation"
)

// Options configure a Controller.
type Options struct {
	// Client of the control cluster; reads come from the cache.
	Client client.Client
	// Live reads from the API server. It is asked before sets that nothing controls are
	// adopted; if it is nil, none are.
	Live client.Reader
	// Events explains to users what was done.
	Events record.EventRecorder
	// Clock tells the time.
	Clock clock.PassiveClock
	// Concurrency is how many deployments are looked at at the same time.
	Concurrency int
}

// Controller reconciles MachineDeployments. Make one with New.
type Controller struct {
	Options
	written freshness.Ledger
	// writtenSets is the same for the sets of all deployments.
	writtenSets freshness.Ledger
}

// New makes a Controller.
func New(opts Options) *Controller { return &Controller{Options: opts} }

// SetupWithManager registers the controller and what it watches.
func (c *Controller) SetupWithManager(mgr ctrl.Manager) error {
	err := ctrl.NewControllerManagedBy(mgr).
		Named("machinedeployment").
		For(&v1alpha1.MachineDeployment{}).
		Watches(&v1alpha1.MachineSet{}, handler.EnqueueRequestsFromMapFunc(c.deploymentsOf)).
		WithOptions(controller.Options{MaxConcurrentReconciles: c.Concurrency}).
		Complete(c)
	if err != nil {
		return fmt.Errorf("setting up the machine deployment controller: %w", err)
	}
	return nil
}

// staleCache is how long a pass waits for the cache to show what this process wrote
// itself. The event of that write comes first.
const staleCache = time.Second

// Reconcile brings a deployment closer to what is asked for.
func (c *Controller) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	deployment := &v1alpha1.MachineDeployment{}
	if err := c.Client.Get(ctx, req.NamespacedName, deployment); err != nil {
		if apierrors.IsNotFound(err) {
			c.written.Forget(req.NamespacedName)
		}
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	sets, err := c.sets(ctx, deployment.Namespace, string(deployment.UID))
	if err != nil {
		return ctrl.Result{}, err
	}
	if !c.fresh(deployment, sets) {
		return ctrl.Result{RequeueAfter: staleCache}, nil
	}
	err = c.reconcile(ctx, deployment, sets)
	if outrun(err) {
		return ctrl.Result{RequeueAfter: staleCache}, nil
	}
	return ctrl.Result{}, err
}

// outrun tells whether an error means that the world has moved on, of which the cache
// will tell. That is not for users to read.
func outrun(err error) bool { return apierrors.IsConflict(err) || errors.Is(err, errCacheBehind) }

// fresh tells whether the cache shows all that this process wrote to the deployment and
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

func (c *Controller) reconcile(ctx context.Context, deployment *v1alpha1.MachineDeployment, sets []*v1alpha1.MachineSet) error {
	if !deployment.DeletionTimestamp.IsZero() {
		return c.terminate(ctx, deployment, sets)
	}
	if errs := validation.MachineDeployment(deployment); len(errs) > 0 {
		return c.writeStatus(ctx, deployment, refusal(deployment, reasonInvalid, errs.ToAggregate().Error(), c.Clock.Now()))
	}
	if err := c.addFinalizer(ctx, deployment); err != nil {
		return err
	}
	if selectsAll(deployment) {
		sentence := "spec.selector: the empty selector selects all machines; nothing is done until it names labels."
		return c.writeStatus(ctx, deployment, observed(refusal(deployment, reasonSelectsAll, sentence, c.Clock.Now()), deployment))
	}
	facts := gather(deployment, sets, c.Clock.Now())
	if err := c.findStrays(ctx, &facts); err != nil {
		return err
	}
	operations := plan(facts)
	failure := c.apply(ctx, &facts, operations)
	if failure == nil {
		failure = c.recordRevision(ctx, facts)
	}
	if outrun(failure) {
		return failure
	}
	if failure == nil && slices.ContainsFunc(operations, operation.claims) {
		return nil // what would be counted now is not the deployment's; the events of the sets come
	}
	if err := c.writeStatus(ctx, deployment, nextStatus(facts, failure)); err != nil {
		return err
	}
	return failure
}

// terminate deletes the sets, and lets go when none is left.
func (c *Controller) terminate(ctx context.Context, deployment *v1alpha1.MachineDeployment, sets []*v1alpha1.MachineSet) error {
	if len(sets) == 0 {
		return c.removeFinalizer(ctx, deployment)
	}
	for _, set := range sets {
		if !set.DeletionTimestamp.IsZero() {
			continue
		}
		// The UID keeps a set of the same name that was made meanwhile.
		if err := c.Client.Delete(ctx, set, client.Preconditions{UID: &set.UID}); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("deleting machine set %s: %w", set.Name, err)
		}
	}
	return nil
}
