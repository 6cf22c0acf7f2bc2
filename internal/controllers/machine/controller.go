// Package machine reconciles Machines: it creates the VM, awaits the node, follows its health, and
// deletes both.
//
// Each pass goes through the steps of lifecycle.go, or of termination.go once the Machine is being
// deleted. A step finds out whether its work is done, so a pass does as much as is possible now
// and ends where it has to wait for an event.
package machine

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/registry"
	"github.com/millwright-dev/millwright/internal/controllers/machine/inputs"
	"github.com/millwright-dev/millwright/internal/controllers/machine/wake"
	"github.com/millwright-dev/millwright/internal/lifecycle/bootstrap"
	"github.com/millwright-dev/millwright/internal/lifecycle/drain"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
	"github.com/millwright-dev/millwright/internal/lifecycle/nodes"
	"github.com/millwright-dev/millwright/internal/lifecycle/outage"
	"github.com/millwright-dev/millwright/internal/lifecycle/ownership"
	"github.com/millwright-dev/millwright/internal/lifecycle/replacement"
	"github.com/millwright-dev/millwright/internal/lifecycle/timeouts"
	"github.com/millwright-dev/millwright/internal/reconcile/expectations"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
	"github.com/millwright-dev/millwright/internal/reconcile/shutdown"
	"github.com/millwright-dev/millwright/internal/reconcile/target"
	"github.com/millwright-dev/millwright/internal/reconcile/tasks"
)

// Options configure a Controller.
type Options struct {
	// Client of the control cluster; reads come from the cache.
	Client client.Client
	// Target is the cluster that nodes join; nil if there is none.
	Target target.Interface
	// Tokens issues bootstrap tokens; nil without a target.
	Tokens *bootstrap.Tokens
	// Engine creates and deletes instances.
	Engine *instance.Engine
	// Drivers are those of the engine. Machines of classes that none of them serves get no VM, and
	// keep the one that they have, until one is registered. Nil means that classes are not checked.
	Drivers *registry.Registry
	// TaskEnds is the source of events of the engine's Wake.
	TaskEnds source.Source
	// Capacity is what is known of the capacity of classes. Nil means that Machines never get another
	// class than the one that they have.
	Capacity Capacity
	// Events records events on Machines, NodeEvents those on nodes, unless it is nil.
	Events, NodeEvents record.EventRecorder
	Clock              clock.PassiveClock
	// Steady is a clock that nobody sets; see outage.Options. Nil is Clock.
	Steady clock.PassiveClock
	// Concurrency is the number of workers.
	Concurrency int
	// CreationTimeout is the time after which a Machine that has not joined is Failed. Zero
	// means timeouts.DefaultCreation. Like all timeouts, a Machine may have its own.
	CreationTimeout time.Duration
	// PreserveTimeout is how long a Machine is preserved. Zero means DefaultPreserveTimeout.
	PreserveTimeout time.Duration
	// InPlaceUpdateTimeout is the time after which the update of a node in place has failed. Zero
	// means timeouts.DefaultInPlaceUpdate.
	InPlaceUpdateTimeout time.Duration
	// RecordJoins has every new Machine say how long its node took to join, at one request more for each.
	// Without it only those do whose creation timeout a program chose.
	RecordJoins bool
	// NodeConditions are the node conditions that make a Machine unhealthy unless they are
	// False. A Machine may have its own.
	NodeConditions []string
	Health         Health
	Drain          Drain
	// Migration tells where the migration of a class of a legacy kind stands. Nil means that there
	// are no such kinds.
	Migration func(ctx context.Context, namespace string, class v1alpha1.ClassSpec) (inputs.Migration, error)
	// OtherOwners finds the objects of another API group that name a VM. Nil means that there
	// is no other API group.
	OtherOwners ownership.Finder
	// Outages reports whether timeouts stand still. Optional.
	Outages *outage.Reporter
}

// Health configures the replacement of unhealthy Machines.
type Health struct {
	// Timeout is the time after which an unhealthy Machine is Failed. Zero means
	// DefaultHealthTimeout.
	Timeout time.Duration
	// MaxReplacements is how many Machines with the same label "name" may be replaced for their
	// health at the same time: a number, or a percentage of those Machines, rounded down, and
	// at least 1.
	MaxReplacements intstr.IntOrString
	// MaxTotalReplacements is the same for the Machines of all pools together; it may be 0, so that none is
	// replaced. Nil is no limit.
	MaxTotalReplacements *intstr.IntOrString
	// OutageTimeout is the time after which an API server that does not answer counts as
	// having been away; timeouts begin anew when it is back. Zero means DefaultOutageTimeout.
	OutageTimeout time.Duration
	// OutagePeriod is how often API servers are asked whether they answer, while a timeout is
	// counted. Zero means DefaultOutagePeriod.
	OutagePeriod time.Duration
}

// Drain configures the drain of nodes before their VMs are deleted.
type Drain struct {
	// Drainer drains nodes. Without one they are only cordoned.
	Drainer Drainer
	// Timeout is the time from the deletion of a Machine until its drain is forced. Zero means
	// DefaultDrainTimeout.
	Timeout time.Duration
	// MaxEvictRetries is how often a refused eviction is tried again. Zero means
	// DefaultMaxEvictRetries. A Machine may have its own.
	MaxEvictRetries int32
}

// Drainer is implemented by drain.Drainer.
type Drainer interface {
	Drain(ctx context.Context, req drain.Request) (drain.Report, error)
	DeleteAttachments(ctx context.Context, node string) (done bool, err error)
	Awaiting(persistentVolume string) []types.NamespacedName
	Refused(namespace string) []types.NamespacedName
	Forget(machine types.NamespacedName)
}

// Controller reconciles Machines. Make one with New.
type Controller struct {
	Options
	outages   *outage.Monitor // made by the first pass
	beginOnce sync.Once

	written      expectations.Writes
	nodes        nodes.Writer
	memory       expectations.Memory[memory]
	replacements replacement.Limiter
}

// New makes a Controller. Timeouts and retries of the options that are negative are none at all, as zero
// means the default.
func New(opts Options) *Controller {
	opts.CreationTimeout = max(0, cmp.Or(opts.CreationTimeout, timeouts.DefaultCreation))
	opts.PreserveTimeout = max(0, cmp.Or(opts.PreserveTimeout, DefaultPreserveTimeout))
	opts.InPlaceUpdateTimeout = max(0, cmp.Or(opts.InPlaceUpdateTimeout, timeouts.DefaultInPlaceUpdate))
	opts.Health.Timeout = max(0, cmp.Or(opts.Health.Timeout, DefaultHealthTimeout))
	opts.Health.OutageTimeout = cmp.Or(opts.Health.OutageTimeout, DefaultOutageTimeout)
	opts.Health.OutagePeriod = cmp.Or(opts.Health.OutagePeriod, DefaultOutagePeriod)
	opts.Drain.Timeout = max(0, cmp.Or(opts.Drain.Timeout, DefaultDrainTimeout))
	opts.Drain.MaxEvictRetries = max(0, cmp.Or(opts.Drain.MaxEvictRetries, DefaultMaxEvictRetries))
	c := &Controller{Options: opts}
	if opts.Health.MaxTotalReplacements != nil {
		c.replacements.Total = &replacement.Limiter{Everywhere: true}
	}
	return c
}

// ofDriver returns the Machines that may wait for a driver, which is asked for them at once.
func (c *Controller) ofDriver(ctx context.Context, name string) []reconcile.Request {
	requests := c.concerned().WaitingForDriver(ctx, name)
	for _, request := range requests {
		c.Engine.Hurry(request.NamespacedName)
	}
	return requests
}

// SetupWithManager registers the controller, its watches, and the index of its replacements.
func (c *Controller) SetupWithManager(mgr ctrl.Manager) error {
	if err := mgr.GetFieldIndexer().IndexField(context.Background(), &v1alpha1.Machine{}, replacement.ByPool, replacement.Pools); err != nil {
		return fmt.Errorf("adding the index %s: %w", replacement.ByPool, err)
	}
	mapped, of := handler.EnqueueRequestsFromMapFunc, c.concerned()
	build := ctrl.NewControllerManagedBy(mgr).
		Named("machine").
		For(&v1alpha1.Machine{}).
		Watches(&v1alpha1.MachineClass{}, mapped(of.WaitingForClass), builder.WithPredicates(wake.ClassChanges())).
		Watches(&v1alpha1.MachineClass{}, mapped(of.OfClass), builder.WithPredicates(wake.CapacityChanges())).
		Watches(&v1alpha1.MachineClass{}, mapped(of.ToUpdate), builder.WithPredicates(wake.UpdateChanges())).
		Watches(&corev1.Secret{}, mapped(of.WaitingForSecret), builder.WithPredicates(wake.SecretChanges())).
		WatchesRawSource(c.TaskEnds).
		WatchesRawSource(tasks.Registrations(c.Drivers, c.ofDriver)).
		WithOptions(controller.Options{MaxConcurrentReconciles: c.Concurrency, RateLimiter: expectations.RateLimiter()})
	if c.Target != nil {
		build.WatchesRawSource(c.Target.Watch(&corev1.Node{}, mapped(of.OfNode), wake.NodeChanges()))
	}
	if c.Target != nil && c.Drain.Drainer != nil {
		for _, events := range c.drainEvents().Sources(c.Target.Watch) {
			build.WatchesRawSource(events)
		}
	}
	if err := build.Complete(shutdown.Quiet(c)); err != nil {
		return fmt.Errorf("setting up the machine controller: %w", err)
	}
	return nil
}

// Reconcile takes a Machine one pass further.
func (c *Controller) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	machine := &v1alpha1.Machine{}
	if err := c.Client.Get(ctx, req.NamespacedName, machine, client.UnsafeDisableDeepCopy); err != nil {
		if apierrors.IsNotFound(err) {
			c.forget(req.NamespacedName)
		}
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	c.replacements.Observe(machine)
	memory := c.memory.Of(req.NamespacedName)
	if memory.released == machine.UID {
		return ctrl.Result{}, nil
	}
	c.beginOnce.Do(func() {
		c.outages = outage.New(outage.Options{
			Control: c.Client, Namespace: req.Namespace, Target: c.Target, Clock: c.Clock, Steady: c.Steady,
			Period: c.Health.OutagePeriod, Timeout: c.Health.OutageTimeout,
		})
		c.Outages.Use(c.outages)
		c.replacements.Begin(c.Clock.Now())
	})
	if !c.written.Fresh(machine) {
		c.outages.Follow(ctx)
		return ctrl.Result{RequeueAfter: expectations.StaleCache}, nil
	}

	scope := newScope(machine, memory, c.Clock.Now())
	steps := c.lifecycle()
	if !machine.DeletionTimestamp.IsZero() {
		steps = c.termination()
	}
	outcome := flow.Run(ctx, scope, steps)
	if machine.DeletionTimestamp.IsZero() && outcome.Err == nil {
		outcome.Err = c.preserve(ctx, scope)
	}
	if err := c.writeStatus(ctx, scope, outcome.Gone); err != nil && outcome.Err == nil {
		outcome.Err = err
	}
	if !outcome.Gone {
		outcome.After = flow.Sooner(outcome.After, scope.within)
	}
	return c.result(ctx, outcome)
}

func (c *Controller) forget(key types.NamespacedName) {
	c.Engine.Forget(key)
	c.written.Forget(key)
	c.memory.Forget(key)
	c.replacements.Forget(key)
	if c.Capacity != nil {
		c.Capacity.Forget(key)
	}
	if c.Tokens != nil {
		c.Tokens.Forget(key)
	}
	if c.Drain.Drainer != nil {
		c.Drain.Drainer.Forget(key)
	}
}

func (c *Controller) result(ctx context.Context, outcome flow.Outcome) (ctrl.Result, error) {
	log := ctrl.LoggerFrom(ctx)
	if apierrors.IsConflict(outcome.Err) {
		log.V(1).Info("another client was first", "step", outcome.Step)
		return ctrl.Result{RequeueAfter: expectations.StaleCache}, nil
	}
	if outcome.Err != nil {
		return ctrl.Result{}, outcome.Err
	}
	if !outcome.Done() {
		log.V(1).Info("waiting", "step", outcome.Step, "for", outcome.Reason, "atMost", outcome.After)
	}
	return ctrl.Result{RequeueAfter: outcome.After}, nil
}

// Defaults, which are those of MCM.
const (
	DefaultHealthTimeout   = timeouts.DefaultHealth
	DefaultDrainTimeout    = timeouts.DefaultDrain
	DefaultMaxEvictRetries = timeouts.DefaultMaxEvictRetries
	DefaultOutageTimeout   = timeouts.DefaultOutage
	DefaultOutagePeriod    = timeouts.DefaultOutagePeriod
)

// creationTimeLeft is how long the Machine may still take to join. One that is Failed gets no more
// time by a restart or an outage, but by a longer timeout.
func (c *Controller) creationTimeLeft(ctx context.Context, s *scope) outage.Countdown {
	begin, timeout := s.machine.CreationTimestamp.Time, timeouts.Creation(s.machine, c.CreationTimeout)
	if s.machine.Status.CurrentStatus.Phase == v1alpha1.MachineFailed {
		if left := timeout.Ends(begin).Sub(s.now); left <= 0 {
			return outage.Countdown{Left: left}
		}
	}
	return c.outages.Countdown(ctx, begin, timeout)
}

// concerned finds the Machines that a change of another object concerns.
func (c *Controller) concerned() wake.Machines { return wake.Machines{Cache: c.Client} }

func (c *Controller) drainEvents() drain.Events {
	return drain.Events{Draining: c.concerned().Draining, Drainer: c.Drain.Drainer}
}
