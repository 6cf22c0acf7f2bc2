// Package capi reconciles MillwrightMachines: it has a driver make the VM of a
// Machine of Cluster API, tells Cluster API about it, and has it removed again.
//
// Each pass goes through the steps of lifecycle.go, or of termination.go once the
// MillwrightMachine is being deleted, in the order of Cluster API's specification of a
// machine infrastructure provider. What the machines share, and what is told to
// autoscalers, are the matters of packages below this one.
package capi

import (
	"context"
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
	"sigs.k8s.io/controller-runtime/pkg/source"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/internal/controllers/capi/core"
	"github.com/millwright-dev/millwright/internal/controllers/capi/credentials"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
	"github.com/millwright-dev/millwright/internal/lifecycle/ownership"
	"github.com/millwright-dev/millwright/internal/reconcile/expectations"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
)

// DefaultJoinTimeout is the time that a VM has to become a node if Options does not say
// otherwise.
const DefaultJoinTimeout = 20 * time.Minute

// Options configure a Controller.
type Options struct {
	// Client reads from the cache. Its scheme knows Cluster API's kinds, see
	// core.AddToScheme. Required.
	Client client.Client
	// Live reads Secrets from the API server: each is needed a few times, and a cache would
	// need the right to read them all. Required.
	Live client.Reader
	// Engine gets and removes instances; it must serve no other API. Required.
	Engine *instance.Engine
	// TaskEnds is the source of events that the engine's Wake feeds.
	TaskEnds source.Source
	// Events explains to users what was done. Required.
	Events record.EventRecorder
	// Clock tells the time. Required.
	Clock clock.PassiveClock
	// Concurrency is how many objects are looked at at the same time.
	Concurrency int
	// Driver is the name of the engine's driver. Required.
	Driver string
	// Placer is the engine's driver, if it knows failure domains. Nil: it does not.
	Placer driver.FailureDomains
	// Installation is the name by which the driver knows its VMs among those of others. Empty:
	// it has none.
	Installation string
	// WatchFilter is the value of the label core.LabelWatchFilter that objects must have.
	// Empty: all are looked after.
	WatchFilter string
	// JoinTimeout is the time that a VM has to become a node before that is said to be
	// wrong. Zero means DefaultJoinTimeout.
	JoinTimeout time.Duration
	// OtherOwners finds the objects of the other API that name a VM. Nil: there is no other API.
	OtherOwners ownership.Finder
}

// Controller reconciles MillwrightMachines. Make one with New.
type Controller struct {
	Options
	// begun is when the controller was made. No timeout counts from before it.
	begun   time.Time
	written expectations.Writes
	memory  expectations.Memory[memory]
	secrets *credentials.Secrets
}

// New makes a Controller.
func New(opts Options) *Controller {
	if opts.JoinTimeout == 0 {
		opts.JoinTimeout = DefaultJoinTimeout
	}
	c := &Controller{Options: opts, begun: opts.Clock.Now()}
	c.secrets = credentials.New(opts.Client, opts.Live, c.holdsSecretsOf)
	return c
}

// Secrets is what the controller knows of the Secrets of MillwrightMachines.
func (c *Controller) Secrets() *credentials.Secrets { return c.secrets }

// SetupWithManager registers the controller, its indexes and what it watches.
func (c *Controller) SetupWithManager(mgr ctrl.Manager) error {
	for name, values := range indexes {
		if err := mgr.GetFieldIndexer().IndexField(context.Background(), &infrav1.MillwrightMachine{}, name, values); err != nil {
			return fmt.Errorf("adding the index %s: %w", name, err)
		}
	}
	mapped := handler.EnqueueRequestsFromMapFunc
	err := ctrl.NewControllerManagedBy(mgr).
		Named("millwrightmachine").
		For(&infrav1.MillwrightMachine{}, builder.WithPredicates(predicate.NewPredicateFuncs(c.watched))).
		Watches(&core.Machine{}, mapped(c.ofMachine), builder.WithPredicates(machineChanges())).
		Watches(&core.Cluster{}, mapped(c.ofCluster), builder.WithPredicates(clusterChanges())).
		Watches(&v1alpha1.MachineClass{}, mapped(c.waitingForClass), builder.WithPredicates(classChanges())).
		WatchesRawSource(c.TaskEnds).
		WithOptions(controller.Options{MaxConcurrentReconciles: c.Concurrency}).
		Complete(c)
	if err != nil {
		return fmt.Errorf("setting up the controller of MillwrightMachines: %w", err)
	}
	return nil
}

func (c *Controller) watched(object client.Object) bool { return core.Watched(c.WatchFilter, object) }

// staleCache is how long a pass waits for the cache to show what this process wrote
// itself. The event of that write comes first.
const staleCache = time.Second

// Reconcile takes a MillwrightMachine one pass further.
func (c *Controller) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	machine := &infrav1.MillwrightMachine{}
	if err := c.Client.Get(ctx, req.NamespacedName, machine); err != nil {
		if apierrors.IsNotFound(err) {
			c.Engine.Forget(req.NamespacedName)
			c.written.Forget(req.NamespacedName)
			c.memory.Forget(req.NamespacedName)
			c.secrets.Forget(req.NamespacedName)
		}
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !c.watched(machine) {
		return ctrl.Result{}, nil
	}
	if !c.written.Fresh(machine) {
		return ctrl.Result{RequeueAfter: staleCache}, nil
	}
	s := newScope(machine, c.memory.Of(req.NamespacedName), c.Clock.Now())
	outcome := flow.Run(ctx, s, c.steps(machine))
	if err := c.persist(ctx, s, outcome.Gone); err != nil && outcome.Err == nil {
		outcome.Err = err
	}
	s.wakeWithin(outcome.After)
	return c.result(ctx, s, outcome)
}

// result turns the end of a pass into what controller-runtime understands.
func (c *Controller) result(ctx context.Context, s *scope, outcome flow.Outcome) (ctrl.Result, error) {
	log := ctrl.LoggerFrom(ctx)
	switch {
	case apierrors.IsConflict(outcome.Err):
		log.V(1).Info("somebody else was first", "step", outcome.Step)
		return ctrl.Result{RequeueAfter: staleCache}, nil
	case outcome.Err != nil:
		return ctrl.Result{}, outcome.Err
	case outcome.Gone:
		return ctrl.Result{}, nil
	}
	if !outcome.Done() {
		log.V(1).Info("waiting", "step", outcome.Step, "for", outcome.Reason, "atMost", outcome.After)
	}
	return ctrl.Result{RequeueAfter: s.within}, nil
}
