// Package machine reconciles Machines: it creates the VM, waits for the node to join, monitors the node's
// health, and deletes both.
//
// A pass runs the lifecycle steps of a Machine or, if the Machine is being deleted, the termination steps.
// Each step checks whether its work is done, so a pass advances as far as possible and stops where it has
// to wait for an event.
package machine

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/outage"
	"github.com/millwright-dev/millwright/internal/lifecycle/replacement"
	"github.com/millwright-dev/millwright/internal/reconcile/edge"
	"github.com/millwright-dev/millwright/internal/reconcile/expectations"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
	"github.com/millwright-dev/millwright/internal/reconcile/tasks"
)

// Controller reconciles Machines. Create one with New.
type Controller struct {
	Options
	edge      edge.Reconciler[*v1alpha1.Machine]
	outages   *outage.Monitor // created by the first pass
	beginOnce sync.Once

	written      expectations.Writes
	memory       expectations.Memory[memory]
	replacements replacement.Limiter

	instances      *instances
	liveUpdates    *liveUpdater
	tokens         bootstrapTokens
	nodes          *nodeClient
	adopter        *adopter
	drainer        *drainer
	inPlaceUpdates *inPlaceUpdater
	health         *healthChecker
	preserver      *preserver
}

// New creates a Controller. Negative timeouts and retry counts in opts mean zero, because zero itself selects
// the default.
func New(opts Options) *Controller {
	c := &Controller{Options: opts.withDefaults()}
	if opts.Health.MaxTotalReplacements != nil {
		c.replacements.Total = &replacement.Limiter{Everywhere: true}
	}
	c.edge = edge.Reconciler[*v1alpha1.Machine]{
		Reader: opts.Client, Kind: &v1alpha1.Machine{}, ReadOnly: true, Pass: c.reconcile, Gone: c.vanished, Forget: c.forget, Events: opts.Events,
	}
	shared := &c.Options
	c.tokens = bootstrapTokens{shared}
	c.instances = &instances{Options: shared, inputs: inputReader{shared}, tokens: c.tokens}
	c.liveUpdates = &liveUpdater{Options: shared, inputs: inputReader{shared}}
	c.nodes = &nodeClient{Options: shared}
	c.drainer = &drainer{Options: shared, nodes: c.nodes, timer: drainTimer{Options: shared, replacements: &c.replacements}}
	c.inPlaceUpdates = &inPlaceUpdater{Options: shared, nodes: c.nodes, drains: c.drainer, replacements: &c.replacements}
	c.health = &healthChecker{Options: shared, nodes: c.nodes, inPlaceUpdates: c.inPlaceUpdates, replacements: &c.replacements}
	c.adopter = &adopter{Options: shared, nodes: c.nodes, health: c.health, tokens: c.tokens}
	c.preserver = &preserver{Options: shared, nodes: c.nodes, drains: c.drainer}
	return c
}

// lifecycle returns the steps of a Machine that is not being deleted.
func (c *Controller) lifecycle() []flow.Step[*scope] {
	return []flow.Step[*scope]{
		{Name: "AddFinalizer", Run: c.instances.addFinalizer},
		{Name: "EnsureInstance", Run: c.instances.ensure},
		{Name: "UpdateInstance", Run: c.liveUpdates.run},
		{Name: "AwaitNode", Run: c.adopter.awaitNode},
		{Name: "FollowNode", Run: c.adopter.followNode},
		{Name: "AwaitRegistration", Run: c.adopter.awaitRegistration},
		{Name: "SetCapacity", Run: c.adopter.setCapacity},
		{Name: "AdoptNode", Run: c.adopter.adoptNode},
		{Name: "RevokeToken", Run: c.tokens.revokeOfJoined},
		{Name: "UpdateInPlace", Run: c.inPlaceUpdates.run},
		{Name: "AssessHealth", Run: c.health.assess},
	}
}

// termination returns the steps of a Machine that is being deleted.
func (c *Controller) termination() []flow.Step[*scope] {
	return []flow.Step[*scope]{
		{Name: "BeginTermination", Run: beginTermination},
		{Name: "AwaitSoleOwner", Run: c.instances.awaitSoleOwner},
		{Name: "IdentifyInstance", Run: c.instances.identify},
		{Name: "IdentifyNode", Run: c.instances.identifyNode},
		{Name: "FindNode", Run: c.drainer.findNode},
		{Name: "AnnounceTermination", Run: c.drainer.announce},
		{Name: "Cordon", Run: c.drainer.cordon},
		{Name: "Drain", Run: c.drainer.drain},
		{Name: "DeleteAttachments", Run: c.drainer.deleteAttachments},
		{Name: "LeaveLoadBalancers", Run: c.drainer.leaveLoadBalancers},
		{Name: "DeleteInstance", Run: c.instances.delete},
		{Name: "DeleteNode", Run: c.nodes.delete},
		{Name: "RevokeToken", Run: c.tokens.revokeOfUnjoined},
		{Name: "RemoveFinalizer", Run: removeFinalizer},
	}
}

// Reconcile runs one pass over a Machine.
func (c *Controller) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	return c.edge.Reconcile(ctx, req)
}

// reconcile runs one pass over a Machine from the cache.
func (c *Controller) reconcile(ctx context.Context, machine *v1alpha1.Machine) (time.Duration, error) {
	c.replacements.Observe(machine)
	memory := c.memory.Of(client.ObjectKeyFromObject(machine))
	if memory.released == machine.UID {
		return 0, nil
	}
	memory.released = ""
	c.begin(machine.Namespace)
	if !c.written.Fresh(machine) {
		c.outages.Follow(ctx)
		return 0, edge.ErrStale
	}

	s := c.newScope(machine, memory)
	steps := c.lifecycle()
	if !machine.DeletionTimestamp.IsZero() {
		steps = c.termination()
	}
	outcome := flow.Run(ctx, s, steps)
	if machine.DeletionTimestamp.IsZero() && outcome.Err == nil {
		outcome.Err = c.preserver.run(ctx, s)
	}
	if err := c.writeStatus(ctx, s, outcome.Gone); err != nil && outcome.Err == nil {
		outcome.Err = err
	}
	if !outcome.Gone {
		outcome.After = flow.Sooner(outcome.After, s.requeueAfter)
	}
	return edge.Result(ctx, outcome)
}

// begin starts the outage monitor and the replacement limiter with the first pass. New is too early, because
// the process may wait for its leader election after New.
func (c *Controller) begin(namespace string) {
	c.beginOnce.Do(func() {
		c.outages = outage.New(outage.Options{
			Control: c.Client, Namespace: namespace, Target: c.Target, Clock: c.Clock, Steady: c.Steady,
			Period: c.Health.OutagePeriod, Timeout: c.Health.OutageTimeout,
		})
		c.Outages.Use(c.outages)
		c.replacements.Begin(c.Clock.Now())
	})
}

// vanished deletes the node of a Machine that no longer exists although this controller did not remove its finalizer.
func (c *Controller) vanished(ctx context.Context, key types.NamespacedName) (time.Duration, error) {
	memory := c.memory.Find(key)
	if c.Target == nil || memory == nil || memory.released != "" {
		return 0, nil
	}
	if !c.Target.Ready() {
		return targetRetry, nil
	}
	return 0, c.nodes.deleteMarked(ctx, key)
}

// forget discards all state about a Machine that no longer exists.
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

// Location returns the location where an instance of the Machine's class was created most recently. It is
// empty if this process does not know. If a new Machine has this value in the annotation
// driver.AnnotationLocation, the controller need not write the location before it creates the instance.
func (c *Controller) Location(ctx context.Context, machine *v1alpha1.Machine) string {
	return c.instances.location(ctx, machine)
}

// SetupWithManager registers the controller, its watches, and the field index that limits replacements.
func (c *Controller) SetupWithManager(mgr ctrl.Manager) error {
	if err := mgr.GetFieldIndexer().IndexField(context.Background(), &v1alpha1.Machine{}, replacement.ByPool, replacement.Pools); err != nil {
		return fmt.Errorf("adding the index %s: %w", replacement.ByPool, err)
	}
	mapped, machines := handler.EnqueueRequestsFromMapFunc, c.mapper()
	build := ctrl.NewControllerManagedBy(mgr).
		Named("machine").
		For(&v1alpha1.Machine{}).
		Watches(&v1alpha1.MachineClass{}, mapped(machines.waitingForClass), builder.WithPredicates(classChanges())).
		Watches(&v1alpha1.MachineClass{}, mapped(machines.ofClass), builder.WithPredicates(capacityChanges())).
		Watches(&v1alpha1.MachineClass{}, mapped(machines.toLiveUpdate), builder.WithPredicates(liveUpdateChanges())).
		Watches(&corev1.Secret{}, mapped(machines.waitingForSecret), builder.WithPredicates(secretChanges())).
		WatchesRawSource(c.TaskCompletions).
		WatchesRawSource(tasks.Registrations(c.Drivers, c.driverRegistered)).
		WithOptions(controller.Options{MaxConcurrentReconciles: c.Concurrency, RateLimiter: expectations.RateLimiter()})
	if c.Target != nil {
		build.WatchesRawSource(c.Target.Watch(&corev1.Node{}, mapped(machines.ofNode), nodeChanges()))
	}
	if c.Target != nil && c.Drain.Drainer != nil {
		for _, events := range c.drainer.events().Sources(c.Target.Watch) {
			build.WatchesRawSource(events)
		}
	}
	if err := build.Complete(c); err != nil {
		return fmt.Errorf("setting up the machine controller: %w", err)
	}
	return nil
}

func (c *Controller) mapper() mapper { return mapper{cache: c.Client} }

// driverRegistered returns requests for the Machines that may be waiting for a driver, and clears their back-off.
func (c *Controller) driverRegistered(ctx context.Context, name string) []reconcile.Request {
	requests := c.mapper().waitingForDriver(ctx, name)
	for _, request := range requests {
		c.Engine.ResetUnavailable(request.NamespacedName)
	}
	return requests
}
