// Package machine reconciles Machines: it gets each a VM, awaits its node,
// watches over the node's health, and takes everything down again.
//
// Each pass goes through the steps of lifecycle.go, or of termination.go once the
// Machine is being deleted. A step finds out for itself whether its work is done, so
// a pass does as much as can be done now and ends where something has to be waited
// for; an event brings the next one.
package machine

import (
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
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
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
)

// Options configure a Controller.
type Options struct {
	// Client of the control cluster; reads come from the cache.
	Client client.Client
	// Target is where nodes join; nil if nowhere.
	Target Target
	// Tokens issues bootstrap tokens; nil without a target.
	Tokens *bootstrap.Tokens
	// Engine gets and removes instances.
	Engine *instance.Engine
	// DriverName is what classes call the engine's driver. Machines whose class is for
	// another one get no VM, and keep the one that they have. Empty: the driver itself
	// looks whom a class is for.
	DriverName string
	// TaskEnds is the source of events that the engine's Wake feeds.
	TaskEnds source.Source
	// Events explains to users what was done.
	Events record.EventRecorder
	// NodeEvents explains on nodes what concerns them. Nil: nothing is.
	NodeEvents record.EventRecorder
	// Clock tells the time.
	Clock clock.PassiveClock
	// Concurrency is how many Machines are looked at at the same time.
	Concurrency int
	// CreationTimeout is the time after which a Machine that has not joined is Failed,
	// unless the Machine says otherwise.
	CreationTimeout time.Duration
	// NodeConditions are the node conditions that make a Machine unhealthy unless they
	// are False, unless the Machine says otherwise.
	NodeConditions []string
	// Health is how long Machines may be unhealthy.
	Health Health
	// Drain is how nodes are emptied.
	Drain Drain
	// OtherOwners finds the objects of another API that name a VM: a driver may give VMs of
	// both. Nil: there is no other API.
	OtherOwners ownership.Finder
}

// Health is how long Machines may be unhealthy, and how many are then replaced.
type Health struct {
	// Timeout is the time after which an unhealthy Machine is Failed, unless the Machine
	// says otherwise. Zero means DefaultHealthTimeout.
	Timeout time.Duration
	// MaxReplacements is how many Machines with the same label "name" may be replaced for
	// their health at the same time: a number, or a percentage of those Machines, rounded
	// down. It counts as 1 if it is less, hence also by default.
	MaxReplacements intstr.IntOrString
	// OutageTimeout is the time after which an API server that does not answer counts as
	// having been away; timeouts begin anew when it is back. Zero means
	// DefaultOutageTimeout.
	OutageTimeout time.Duration
	// OutagePeriod is how often API servers are asked whether they answer, while a timeout
	// is counted. Zero means DefaultOutagePeriod.
	OutagePeriod time.Duration
}

// Drain is how nodes are emptied before their VMs are deleted.
type Drain struct {
	// Drainer empties nodes. Without one they are only cordoned.
	Drainer Drainer
	// Timeout is the time from the deletion of a Machine on after which its drain is
	// forced, unless the Machine says otherwise. Zero means DefaultDrainTimeout.
	Timeout time.Duration
	// MaxEvictRetries is how often an eviction that was refused is tried again, unless the
	// Machine says otherwise. Zero means DefaultMaxEvictRetries.
	MaxEvictRetries int32
}

// Drainer empties nodes, as drain.Drainer does, which says what each method means.
type Drainer interface {
	Drain(ctx context.Context, req drain.Request) (drain.Report, error)
	DeleteAttachments(ctx context.Context, node string) (done bool, err error)
	Awaiting(persistentVolume string) []types.NamespacedName
	Refused(namespace string) []types.NamespacedName
	Forget(machine types.NamespacedName)
}

// Target is the cluster that nodes join, as target.Cluster is one. It need not answer.
type Target interface {
	// Client reads Nodes from a cache and writes to the API server.
	Client() client.Client
	// Ready reports whether the target has answered, so that what the cache does not
	// show is not there.
	Ready() bool
	// ReadySince is when the cache was first complete; zero if it is not yet.
	ReadySince() time.Time
	// Watch makes a source of events about objects of the target.
	Watch(object client.Object, events handler.EventHandler, filters ...predicate.Predicate) source.Source
}

// Controller reconciles Machines. Make one with New.
type Controller struct {
	Options
	// outages counts timeouts; made at the first pass.
	outages   *outage.Monitor
	beginOnce sync.Once

	written expectations.Writes
	// nodes is the same for the nodes of the target.
	nodes        nodes.Writer
	memory       expectations.Memory[memory]
	replacements replacement.Limiter
}

// New makes a Controller.
func New(opts Options) *Controller {
	opts.setDefaults()
	return &Controller{Options: opts}
}

// SetupWithManager registers the controller, the index that it alone uses, and what it
// watches.
func (c *Controller) SetupWithManager(mgr ctrl.Manager) error {
	if err := mgr.GetFieldIndexer().IndexField(context.Background(), &v1alpha1.Machine{}, replacement.ByPool, replacement.Pools); err != nil {
		return fmt.Errorf("adding the index %s: %w", replacement.ByPool, err)
	}
	build := ctrl.NewControllerManagedBy(mgr).
		Named("machine").
		For(&v1alpha1.Machine{}).
		Watches(&v1alpha1.MachineClass{}, handler.EnqueueRequestsFromMapFunc(c.waitingForClass), builder.WithPredicates(classChanges())).
		Watches(&v1alpha1.MachineClass{}, handler.EnqueueRequestsFromMapFunc(c.ofClass), builder.WithPredicates(capacityChanges())).
		Watches(&corev1.Secret{}, handler.EnqueueRequestsFromMapFunc(c.waitingForSecret), builder.WithPredicates(secretChanges())).
		WatchesRawSource(c.TaskEnds).
		WithOptions(controller.Options{MaxConcurrentReconciles: c.Concurrency})
	for _, events := range c.targetEvents() {
		build.WatchesRawSource(events)
	}
	if err := build.Complete(c); err != nil {
		return fmt.Errorf("setting up the machine controller: %w", err)
	}
	return nil
}

// staleCache is how long a pass waits for the cache to show what this process wrote
// itself. The event of that write comes first.
const staleCache = time.Second

// Reconcile takes a Machine one pass further.
func (c *Controller) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	machine := &v1alpha1.Machine{}
	if err := c.Client.Get(ctx, req.NamespacedName, machine, client.UnsafeDisableDeepCopy); err != nil {
		if apierrors.IsNotFound(err) {
			c.forget(req.NamespacedName)
		}
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	memory := c.memory.Of(req.NamespacedName)
	if memory.released == machine.UID {
		return ctrl.Result{}, nil
	}
	if !c.written.Fresh(machine) {
		return ctrl.Result{RequeueAfter: staleCache}, nil
	}

	c.beginOnce.Do(func() {
		c.outages = outage.New(outage.Options{
			Control: c.Client, Namespace: req.Namespace, Target: c.Target, Clock: c.Clock,
			Period: c.Health.OutagePeriod, Timeout: c.Health.OutageTimeout,
		})
	})
	scope := newScope(machine, memory, c.Clock.Now())
	steps := c.lifecycle()
	if !machine.DeletionTimestamp.IsZero() {
		steps = c.termination()
	}
	outcome := flow.Run(ctx, scope, steps)
	if err := c.writeStatus(ctx, scope, outcome.Gone); err != nil && outcome.Err == nil {
		outcome.Err = err
	}
	if !outcome.Gone && scope.within > 0 && (outcome.After == 0 || scope.within < outcome.After) {
		outcome.After = scope.within
	}
	return c.result(ctx, outcome)
}

// forget drops what is remembered of a Machine that is gone.
func (c *Controller) forget(key types.NamespacedName) {
	c.Engine.Forget(key)
	c.written.Forget(key)
	c.memory.Forget(key)
	c.replacements.Forget(key)
	if c.Tokens != nil {
		c.Tokens.Forget(key)
	}
	if c.Drain.Drainer != nil {
		c.Drain.Drainer.Forget(key)
	}
}

// result turns the end of a pass into what controller-runtime understands.
func (c *Controller) result(ctx context.Context, outcome flow.Outcome) (ctrl.Result, error) {
	log := ctrl.LoggerFrom(ctx)
	if apierrors.IsConflict(outcome.Err) {
		log.V(1).Info("somebody else was first", "step", outcome.Step)
		return ctrl.Result{RequeueAfter: staleCache}, nil
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
	DefaultOutageTimeout   = 30 * time.Second
	DefaultOutagePeriod    = time.Minute
)

func (o *Options) setDefaults() {
	or := func(value *time.Duration, otherwise time.Duration) {
		if *value == 0 {
			*value = otherwise
		}
	}
	or(&o.CreationTimeout, timeouts.DefaultCreation)
	or(&o.Health.Timeout, DefaultHealthTimeout)
	or(&o.Health.OutageTimeout, DefaultOutageTimeout)
	or(&o.Health.OutagePeriod, DefaultOutagePeriod)
	or(&o.Drain.Timeout, DefaultDrainTimeout)
	if o.Drain.MaxEvictRetries == 0 {
		o.Drain.MaxEvictRetries = DefaultMaxEvictRetries
	}
}

func (c *Controller) creationTimeout(machine *v1alpha1.Machine) timeouts.Timeout {
	return timeouts.Creation(machine, c.CreationTimeout)
}

func (c *Controller) healthTimeout(machine *v1alpha1.Machine) timeouts.Timeout {
	return timeouts.Health(machine, c.Health.Timeout)
}

func (c *Controller) drainTimeout(machine *v1alpha1.Machine) timeouts.Timeout {
	return timeouts.Drain(machine, c.Drain.Timeout)
}

// creationTimeLeft is how long the Machine may still take to join. One that is Failed has
// had its time: a restart or an outage does not give it any more, a longer timeout does.
func (c *Controller) creationTimeLeft(ctx context.Context, s *scope) outage.Countdown {
	begin, timeout := s.machine.CreationTimestamp.Time, c.creationTimeout(s.machine)
	if s.machine.Status.CurrentStatus.Phase == v1alpha1.MachineFailed {
		if left := timeout.Ends(begin).Sub(s.now); left <= 0 {
			return outage.Countdown{Left: left}
		}
	}
	return c.outages.Countdown(ctx, begin, timeout)
}
