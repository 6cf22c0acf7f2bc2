// Package machineset keeps as many Machines as a MachineSet asks for.
//
// A pass gathers the facts, plans operations from them in pure functions, and applies
// those. Each operation carries its reason into an event and a log line.
package machineset

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/reconcile/expectations"
	"github.com/millwright-dev/millwright/internal/reconcile/fieldindex"
	"github.com/millwright-dev/millwright/internal/reconcile/validation"
)

// Options configure a Controller.
type Options struct {
	// Client of the control cluster; reads come from the cache.
	Client client.Client
	// Live reads from the API server.
	Live client.Reader
	// Machines finds those of a set. Nil: by listing them with Client.
	Machines fieldindex.Machines
	// Events explains to users what was done.
	Events record.EventRecorder
	// Clock tells the time.
	Clock clock.PassiveClock
	// Concurrency is how many sets are looked at at the same time.
	Concurrency int
	// Overshoot says when a set has so many Machines that it is frozen. Nil: never.
	Overshoot *Overshoot
	// EnforceMinReadySeconds counts Machines as available only after a set's
	// spec.minReadySeconds, as is documented. MCM never does.
	EnforceMinReadySeconds bool
}

// Controller reconciles MachineSets. Make one with New.
type Controller struct {
	Options
	expected *writes
	first    baselines
	slowed   *backoff
	written  expectations.Ledger
	// inherited holds an *inherited by the key of its set.
	inherited sync.Map
	// sizes holds how many Machines a set had at the last look, by its key.
	sizes sync.Map
	// orphaned holds the UIDs of sets that are deleted without their Machines.
	orphaned sync.Map
}

// New makes a Controller.
func New(opts Options) *Controller {
	if opts.Machines == nil {
		opts.Machines = fieldindex.Listed(opts.Client)
	}
	return &Controller{Options: opts, expected: newExpectations(), slowed: newBackoff()}
}

// SetupWithManager registers the controller and what it watches.
func (c *Controller) SetupWithManager(mgr ctrl.Manager) error {
	err := ctrl.NewControllerManagedBy(mgr).
		Named("machineset").
		For(&v1alpha1.MachineSet{}, builder.WithPredicates(news())).
		Watches(&v1alpha1.Machine{}, c.machineEvents()).
		Watches(&v1alpha1.MachineSet{}, handler.EnqueueRequestsFromMapFunc(c.concerned), builder.WithPredicates(otherSelection())).
		Watches(&v1alpha1.MachineSet{}, c.deletions()).
		Watches(&v1alpha1.MachineClass{}, handler.EnqueueRequestsFromMapFunc(c.setsWaitingFor)).
		WithOptions(controller.Options{MaxConcurrentReconciles: c.Concurrency, RateLimiter: expectations.RateLimiter()}).
		Complete(c)
	if err != nil {
		return fmt.Errorf("setting up the machine set controller: %w", err)
	}
	return nil
}

const (
	// settle is how long events of Machines are gathered before their set is looked
	// at: the Machines of a set change in swarms.
	settle = 100 * time.Millisecond
	// settleFor is for how many Machines that is long enough. A pass looks at all of a
	// set's, so it is made the more seldom the more there are; else the cost of a Machine
	// would grow with their number.
	settleFor = 300
	// staleCache is how long a pass waits for the cache to show what this process, or one
	// before it, wrote. The event of that write comes first.
	staleCache = time.Second
)

// machineEvents brings events of Machines to the sets that own them, or might.
func (c *Controller) machineEvents() handler.EventHandler {
	type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]
	wake := func(ctx context.Context, q queue, objects ...client.Object) {
		for _, object := range objects {
			for _, request := range c.setsOf(ctx, object) {
				q.AddAfter(request, c.settling(request.NamespacedName))
			}
		}
	}
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q queue) { wake(ctx, q, e.Object) },
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q queue) { wake(ctx, q, e.Object) },
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) {
			if e.ObjectOld.GetResourceVersion() != e.ObjectNew.GetResourceVersion() {
				wake(ctx, q, e.ObjectOld, e.ObjectNew)
			}
		},
	}
}

// news lets through what calls for a look at a set. That a condition says the same in other words
// does not: this controller has written that, after a failure with a new text, and to look at once
// would be to try again past the rate limit.
func news() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		was, is := e.ObjectOld.(*v1alpha1.MachineSet), e.ObjectNew.(*v1alpha1.MachineSet)
		resync := was.ResourceVersion == is.ResourceVersion
		return resync || !equality.Semantic.DeepEqual(withoutWords(was), withoutWords(is))
	}}
}

// withoutWords is a set without what every status write changes, and without what its conditions
// say.
func withoutWords(set *v1alpha1.MachineSet) *v1alpha1.MachineSet {
	lean := *set
	lean.ResourceVersion, lean.ManagedFields, lean.Status.LastOperation = "", nil, v1alpha1.LastOperation{}
	lean.Status.Conditions = slices.Clone(set.Status.Conditions)
	for i := range lean.Status.Conditions {
		lean.Status.Conditions[i].Message = ""
	}
	return &lean
}

// settling is how long events are gathered for a set.
func (c *Controller) settling(set client.ObjectKey) time.Duration {
	machines := 0
	if size, known := c.sizes.Load(set); known {
		machines = size.(int)
	}
	return settle * time.Duration(max(1, machines/settleFor))
}

func (c *Controller) setsOf(ctx context.Context, object client.Object) []reconcile.Request {
	if owner := metav1.GetControllerOfNoCopy(object); owner != nil {
		if owner.Kind != "MachineSet" {
			return nil
		}
		return []reconcile.Request{{NamespacedName: client.ObjectKey{Namespace: object.GetNamespace(), Name: owner.Name}}}
	}
	sets := &v1alpha1.MachineSetList{}
	if err := c.Client.List(ctx, sets, client.InNamespace(object.GetNamespace()), client.UnsafeDisableDeepCopy); err != nil {
		return nil // the cache ends with the process
	}
	var requests []reconcile.Request
	for i := range sets.Items {
		if selects(sets.Items[i].Spec.Selector, object.GetLabels()) {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&sets.Items[i])})
		}
	}
	return requests
}

// setsWaitingFor are the sets whose Machines of a class have failed. What changed may be
// what was wrong with it.
func (c *Controller) setsWaitingFor(_ context.Context, class client.Object) []reconcile.Request {
	var requests []reconcile.Request
	for _, key := range c.slowed.waitingFor(client.ObjectKeyFromObject(class)) {
		requests = append(requests, reconcile.Request{NamespacedName: key})
	}
	return requests
}

// Reconcile brings the number of a set's Machines closer to what is asked for.
func (c *Controller) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	set := &v1alpha1.MachineSet{}
	if err := c.Client.Get(ctx, req.NamespacedName, set); err != nil {
		if apierrors.IsNotFound(err) {
			c.expected.forget(req.NamespacedName)
			c.written.Forget(req.NamespacedName)
			c.slowed.forget(req.NamespacedName)
			c.inherited.Delete(req.NamespacedName)
			c.sizes.Delete(req.NamespacedName)
		}
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if fresh, err := c.fresh(ctx, set); err != nil {
		return ctrl.Result{}, err
	} else if !fresh {
		return ctrl.Result{RequeueAfter: staleCache}, nil
	}
	result, err := c.reconcile(ctx, set)
	if expectations.Conflict(err) {
		return ctrl.Result{RequeueAfter: staleCache}, nil
	}
	return result, err
}

func (c *Controller) reconcile(ctx context.Context, set *v1alpha1.MachineSet) (ctrl.Result, error) {
	deleting := !set.DeletionTimestamp.IsZero()
	if errs := invalid(set); len(errs) > 0 && !deleting {
		return ctrl.Result{}, c.writeStatus(ctx, set, invalidStatus(set, errs.ToAggregate().Error(), c.Clock.Now()))
	}
	if !deleting {
		if err := c.addFinalizer(ctx, set); err != nil {
			return ctrl.Result{}, err
		}
	}
	return c.replicate(ctx, set)
}

// invalid says what is wrong with a set. One that selects everything would adopt, and then
// delete, what others made. MCM accepts a negative time and ignores it.
func invalid(set *v1alpha1.MachineSet) field.ErrorList {
	errs := validation.MachineSet(set)
	if selectsAll(set.Spec.Selector) {
		errs = append(errs, field.Invalid(field.NewPath("spec", "selector"), "{}", "must not match every machine"))
	}
	if seconds := set.Spec.MinReadySeconds; seconds < 0 {
		errs = append(errs, field.Invalid(field.NewPath("spec", "minReadySeconds"), seconds, "must not be negative"))
	}
	return errs
}

// plan plans. No set is frozen over what a cache shows of its deployment, which may be older than
// what it shows of the set: one that was scaled up and then replaced would have too many for what
// was wanted before. So the API server is asked first.
func (c *Controller) plan(ctx context.Context, f *facts) ([]operation, error) {
	operations := plan(*f)
	if f.parent == nil || len(only(operations, freeze)) == 0 {
		return operations, nil
	}
	var err error
	if f.parent, err = c.parent(ctx, c.Live, f.set); err != nil {
		return nil, err
	}
	return plan(*f), nil
}

// replicate plans and acts.
func (c *Controller) replicate(ctx context.Context, set *v1alpha1.MachineSet) (ctrl.Result, error) {
	facts, err := c.gather(ctx, set)
	if err != nil {
		return ctrl.Result{}, err
	}
	c.sizes.Store(client.ObjectKeyFromObject(set), len(facts.owned))
	if facts.over() && controllerutil.ContainsFinalizer(set, v1alpha1.FinalizerMCM) {
		return ctrl.Result{}, c.removeFinalizer(ctx, set)
	}
	operations, err := c.plan(ctx, &facts)
	if err != nil {
		return ctrl.Result{}, err
	}
	failure := c.apply(ctx, &facts, operations)
	told := failure
	if expectations.Conflict(failure) { // somebody else was first; not for users to read
		froze := frozen(set) && len(only(operations, freeze)) > 0
		if set.DeletionTimestamp.IsZero() && !froze {
			return ctrl.Result{}, failure
		}
		// Many Machines that change while they are deleted would keep the numbers as they were; and
		// why a set is frozen, no later pass knows.
		told = nil
	}
	if !facts.certain {
		// What would be counted now was true once, but belongs to no generation.
		if failure != nil {
			return ctrl.Result{}, failure
		}
		return ctrl.Result{RequeueAfter: staleCache}, nil
	}
	if err := c.writeStatus(ctx, set, nextStatus(facts, operations, told)); err != nil {
		return ctrl.Result{}, err
	}
	return ctrl.Result{RequeueAfter: nextLook(facts)}, failure
}
