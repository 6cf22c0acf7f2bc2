// Package machineset reconciles MachineSets: it creates and deletes Machines to keep the desired number of
// replicas.
//
// A pass gathers facts, plans operations, applies them, and writes the status.
package machineset

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/scarcity/capacity"
	"github.com/millwright-dev/millwright/internal/pool/scale"
	"github.com/millwright-dev/millwright/internal/reconcile/apierror"
	"github.com/millwright-dev/millwright/internal/reconcile/cascade"
	"github.com/millwright-dev/millwright/internal/reconcile/edge"
	"github.com/millwright-dev/millwright/internal/reconcile/expectations"
	"github.com/millwright-dev/millwright/internal/reconcile/fieldindex"
	"github.com/millwright-dev/millwright/internal/reconcile/validation"
)

// Options configure a Controller.
type Options struct {
	// Client is the client of the control cluster. It reads from the cache.
	Client client.Client
	// Live reads from the API server.
	Live client.Reader
	// Machines finds the Machines of a set. If nil, they are listed with Client.
	Machines fieldindex.Machines
	// Location returns the location where the VM of a new Machine will be created, or "" if it is not known;
	// see driver.Locator. If nil, locations are not known.
	Location func(ctx context.Context, machine *v1alpha1.Machine) string
	// Capacity records which classes have capacity. If nil, Machines are created with the class of the
	// template, and the machine controller falls back to other classes.
	Capacity *capacity.Memory
	// OutageMemory is how long no Machines are created in a zone after an outage. It applies to sets whose
	// unhealthy Machines are replaced in other zones, and begins when the last unhealthy Machine of the zone
	// is gone. Zero means capacity.DefaultMemory, as for classes without capacity.
	OutageMemory time.Duration
	// Events records events on sets.
	Events record.EventRecorder
	// SafetyEvents records events on sets that are frozen or unfrozen, which have another source in MCM. If nil, Events
	// records them.
	SafetyEvents record.EventRecorder
	Clock        clock.PassiveClock
	// Concurrency is the number of sets that are reconciled at the same time.
	Concurrency int
	// Overshoot configures when a set is frozen. If nil, sets are never frozen.
	Overshoot *Overshoot
	// EnforceMinReadySeconds counts Machines as available only after spec.minReadySeconds of their set, as
	// documented. MCM ignores that field.
	EnforceMinReadySeconds bool
}

// Overshoot configures when a set is frozen.
type Overshoot = scale.Overshoot

// Controller reconciles MachineSets. Create one with New.
type Controller struct {
	Options
	edge     edge.Reconciler[*v1alpha1.MachineSet]
	written  expectations.Writes
	memory   expectations.Memory[memory]
	orphaned cascade.Orphaned
}

// New creates a Controller.
func New(opts Options) *Controller {
	if opts.Machines == nil {
		opts.Machines = fieldindex.Listed(opts.Client)
	}
	if opts.SafetyEvents == nil {
		opts.SafetyEvents = opts.Events
	}
	opts.OutageMemory = cmp.Or(opts.OutageMemory, capacity.DefaultMemory)
	c := &Controller{Options: opts}
	c.edge = edge.Reconciler[*v1alpha1.MachineSet]{
		Reader: c.Client, Kind: &v1alpha1.MachineSet{}, Written: &c.written, Pass: c.pass, Forget: c.memory.Forget, Events: c.Events,
	}
	return c
}

// SetupWithManager registers the controller and its watches.
func (c *Controller) SetupWithManager(mgr ctrl.Manager) error {
	err := ctrl.NewControllerManagedBy(mgr).
		Named("machineset").
		For(&v1alpha1.MachineSet{}, builder.WithPredicates(relevantChange())).
		Watches(&v1alpha1.Machine{}, c.machineEvents()).
		Watches(&v1alpha1.MachineSet{}, handler.EnqueueRequestsFromMapFunc(c.overlappingSets), builder.WithPredicates(selectionChange())).
		Watches(&v1alpha1.MachineSet{}, c.orphaned.Handler()).
		Watches(&v1alpha1.MachineClass{}, handler.EnqueueRequestsFromMapFunc(c.setsInBackOff)).
		WithOptions(controller.Options{MaxConcurrentReconciles: c.Concurrency, RateLimiter: expectations.RateLimiter()}).
		Complete(c)
	if err != nil {
		return fmt.Errorf("setting up the machine set controller: %w", err)
	}
	return nil
}

// Reconcile runs one pass over a set.
func (c *Controller) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	return c.edge.Reconcile(ctx, req)
}

// held reports whether a set has a finalizer of MCM or of its old versions.
func held(set *v1alpha1.MachineSet) bool {
	return controllerutil.ContainsFinalizer(set, v1alpha1.FinalizerMCM) || controllerutil.ContainsFinalizer(set, v1alpha1.FinalizerLegacy)
}

func (c *Controller) pass(ctx context.Context, set *v1alpha1.MachineSet) (time.Duration, error) {
	if set.DeletionTimestamp.IsZero() {
		if errs := invalid(set); len(errs) > 0 {
			return 0, c.writeStatus(ctx, set, invalidStatus(set, errs.ToAggregate().Error(), c.Clock.Now()))
		}
		if err := c.register(ctx, set); err != nil {
			return 0, err
		}
	}
	facts, version, err := c.gather(ctx, set)
	if err != nil {
		return 0, err
	}
	memory := c.memory.Of(client.ObjectKeyFromObject(set))
	memory.publish(facts)
	c.warnOfPolicy(set, &memory.sent)
	if facts.Deleted() && held(set) {
		return 0, apierror.IgnoreGone(c.changeFinalizer(ctx, set, controllerutil.RemoveFinalizer))
	}
	done := c.apply(ctx, facts, scale.Plan(facts))
	notBefore := c.backOff(ctx, facts, version, done.deleted)
	memory.publish(facts)
	failure := done.failure
	if apierror.Conflict(failure) { // users need not know that another client was first
		if set.DeletionTimestamp.IsZero() && done.froze == "" {
			return 0, failure
		}
		// The status is written nevertheless. During a deletion, frequent changes of many Machines could
		// otherwise prevent any update, and no later pass knows why the set was frozen.
		done.failure = nil
	}
	if !facts.Current {
		// The numbers would not match any generation.
		return expectations.StaleCache, failure
	}
	if err := c.writeStatus(ctx, done.set, nextStatus(facts, done)); err != nil {
		return 0, err
	}
	return scale.RequeueAfter(facts, notBefore), edge.Reported(failure)
}

// invalid validates a set. A set that selects everything would adopt, and then delete, the Machines of other sets.
// MCM accepts negative minReadySeconds and ignores them.
func invalid(set *v1alpha1.MachineSet) field.ErrorList {
	errs := validation.MachineSet(set)
	if scale.SelectsAll(set.Spec.Selector) {
		errs = append(errs, field.Invalid(field.NewPath("spec", "selector"), "{}", "must not match every machine"))
	}
	if seconds := set.Spec.MinReadySeconds; seconds < 0 {
		errs = append(errs, field.Invalid(field.NewPath("spec", "minReadySeconds"), seconds, "must not be negative"))
	}
	return errs
}
