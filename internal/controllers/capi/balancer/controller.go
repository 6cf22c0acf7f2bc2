// Package balancer runs the load balancers that MillwrightClusters ask for.
//
// Each has a port of this process, which becomes the Cluster's endpoint before there are machines and stays it
// whichever there are. It forwards to the API servers of the Cluster's control plane machines.
package balancer

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/capi/core"
	"github.com/millwright-dev/millwright/internal/loadbalancer"
	"github.com/millwright-dev/millwright/internal/reconcile/edge"
	"github.com/millwright-dev/millwright/internal/reconcile/expectations"
	"github.com/millwright-dev/millwright/internal/reconcile/tasks"
)

// Options configure a Controller.
type Options struct {
	// Client reads from the cache. Its scheme has Cluster API's kinds. Required.
	Client client.Client
	// Live reads from the API server which ports are free, before one is given away. Required.
	Live client.Reader
	// Namespace of the objects. Empty: all namespaces.
	Namespace string
	// Events records events on MillwrightClusters. Required.
	Events record.EventRecorder
	// Clock is required.
	Clock clock.PassiveClock
	// WatchFilter is the value of the label core.LabelWatchFilter that objects must have.
	// Empty: all objects are reconciled.
	WatchFilter string
	// Name is that by which MillwrightClusters ask for this load balancer. Required.
	Name string
	// Host is the name or address by which clients reach its ports. Required.
	Host string
	// FirstPort and LastPort are the ports of endpoints. Required.
	FirstPort, LastPort int32
	// MaxPerNamespace is how many of them the MillwrightClusters of one namespace may have; 0 for any number.
	MaxPerNamespace int
	// Lock is that of several processes with this name: only the one that has it gives ports away and writes
	// conditions, and all of them forward. Nil: this is the only one.
	Lock resourcelock.Interface
	// Ready is called once all ports that were endpoints in the beginning have been opened, or cannot be. Default:
	// nothing is called.
	Ready func()
	// Listen opens a port. Required.
	Listen func(port int32) (net.Listener, error)
	// Balancer configures the balancer of each Cluster; Changed does not matter.
	Balancer loadbalancer.Options
}

// Controller reconciles MillwrightClusters. Make one with New, and end it with Close.
type Controller struct {
	Options
	edge  edge.Reconciler[*infrav1.MillwrightCluster]
	waker *tasks.Waker
	start *start

	mu   sync.Mutex
	open map[types.NamespacedName]*endpoint
	// waiting are those that would get a port if another one were closed.
	waiting map[types.NamespacedName]struct{}
	leads   bool
}

// endpoint is an open port.
type endpoint struct {
	*loadbalancer.Balancer
	port int32
	// chosen says that this process has decided on it while it led. Otherwise it is that of another MillwrightCluster if
	// the process that leads, or led, says so.
	chosen bool
	// stop ends the balancer, and returns when it has ended.
	stop func()
}

// New makes a Controller.
func New(opts Options) *Controller {
	if opts.Ready == nil {
		opts.Ready = func() {}
	}
	c := &Controller{
		Options: opts, waker: &tasks.Waker{}, start: newStart(opts.Ready), leads: opts.Lock == nil,
		open: map[types.NamespacedName]*endpoint{}, waiting: map[types.NamespacedName]struct{}{},
	}
	c.edge = edge.Reconciler[*infrav1.MillwrightCluster]{
		Reader: c.Client, Kind: &infrav1.MillwrightCluster{}, Pass: c.pass, Forget: c.release, Events: c.Events,
	}
	return c
}

// SetupWithManager registers the controller and its watches. One object is reconciled at a time, as ports are common to all.
func (c *Controller) SetupWithManager(mgr ctrl.Manager) error {
	mapped := handler.EnqueueRequestsFromMapFunc
	err := ctrl.NewControllerManagedBy(mgr).
		Named("controlplaneloadbalancer").
		For(&infrav1.MillwrightCluster{}).
		Watches(&core.Cluster{}, mapped(c.ofCluster)).
		Watches(&infrav1.MillwrightMachine{}, mapped(c.ofMachine), builder.WithPredicates(predicate.NewPredicateFuncs(controlPlane))).
		WatchesRawSource(c.waker).
		WithOptions(controller.Options{MaxConcurrentReconciles: 1, RateLimiter: expectations.RateLimiter()}).
		Complete(c)
	if err != nil {
		return fmt.Errorf("setting up the controller of load balancers: %w", err)
	}
	for _, beside := range []manager.RunnableFunc{c.elect, c.begin} {
		if err := mgr.Add(beside); err != nil {
			return fmt.Errorf("setting up the controller of load balancers: %w", err)
		}
	}
	return nil
}

func controlPlane(object client.Object) bool {
	_, ok := object.GetLabels()[core.LabelControlPlane]
	return ok
}

func (c *Controller) ofCluster(_ context.Context, object client.Object) []reconcile.Request {
	return object.(*core.Cluster).Spec.InfrastructureRef.Requests(object.GetNamespace(), infrav1.Kind(infrav1.MillwrightClusterKind))
}

func (c *Controller) ofMachine(ctx context.Context, object client.Object) []reconcile.Request {
	cluster, err := core.FindCluster(ctx, c.Client, object.GetNamespace(), object.GetLabels()[core.LabelCluster])
	if err != nil || cluster == nil {
		return nil
	}
	return c.ofCluster(ctx, cluster)
}

// Close closes all ports.
func (c *Controller) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, e := range c.open {
		e.stop()
		delete(c.open, key)
	}
}

// Reconcile opens or closes the port of a Cluster, and configures the servers of its balancer.
func (c *Controller) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	defer c.start.passed(req.NamespacedName)
	return c.edge.Reconcile(ctx, req)
}

// release closes the port of a MillwrightCluster that does not need it any more.
func (c *Controller) release(key types.NamespacedName) {
	c.close(key)
	c.wakeWaiting() // its endpoint is free, also if it was not open
}

func (c *Controller) pass(ctx context.Context, infra *infrav1.MillwrightCluster) (time.Duration, error) {
	if !c.asked(infra) {
		c.release(client.ObjectKeyFromObject(infra))
		return 0, nil
	}
	cluster, err := core.FindCluster(ctx, c.Client, infra.Namespace, core.Owner(infra, core.ClusterKind))
	if err != nil || cluster == nil {
		return 0, err
	}
	f, err := c.gather(ctx, c.Client, infra, cluster)
	if err != nil {
		return 0, err
	}
	p := planFor(f)
	if p.claim { // the cache may lack what another process has just given away
		if f, err = c.gather(ctx, c.Live, infra, cluster); err != nil {
			return 0, err
		}
		p = planFor(f)
	}
	return c.apply(ctx, infra, f, p)
}

// asked reports whether a MillwrightCluster asks for this load balancer.
func (c *Controller) asked(infra *infrav1.MillwrightCluster) bool {
	wanted := infra.Spec.ControlPlaneLoadBalancer
	_, foreign := infra.Annotations[core.AnnotationManagedBy]
	return wanted != nil && cmp.Or(wanted.Name, infrav1.DefaultLoadBalancer) == c.Name && !foreign && core.Watched(c.WatchFilter, infra)
}

// close closes the port of a MillwrightCluster, if it has one.
func (c *Controller) close(key types.NamespacedName) {
	c.mu.Lock()
	e := c.open[key]
	delete(c.open, key)
	c.mu.Unlock()
	if e != nil {
		e.stop()
		c.wakeWaiting()
	}
}

// await remembers one that has no port for a reason. It is woken when a port is closed.
func (c *Controller) await(key types.NamespacedName, reason string) {
	if reason == "" {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting[key] = struct{}{}
}

// wakeWaiting wakes those that wait for a port.
func (c *Controller) wakeWaiting() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key := range c.waiting {
		c.waker.Wake(key)
	}
	clear(c.waiting)
}

// find returns the open port of a MillwrightCluster; nil if it has none.
func (c *Controller) find(key types.NamespacedName) *endpoint {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.open[key]
}

// choose notes that an open port stays that of its MillwrightCluster, if this process leads.
func (c *Controller) choose(e *endpoint) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e.chosen = e.chosen || c.leads
}

// displace closes a port for another MillwrightCluster than the one that gets it, and has its pass say so.
func (c *Controller) displace(key types.NamespacedName, port int32) {
	c.mu.Lock()
	var displaced []types.NamespacedName
	for other, e := range c.open {
		if other != key && e.port == port {
			displaced = append(displaced, other)
		}
	}
	c.mu.Unlock()
	for _, other := range displaced {
		c.close(other)
		c.waker.Wake(other)
	}
}

// listen opens the port of a MillwrightCluster, in place of another one that it may have had.
func (c *Controller) listen(key types.NamespacedName, port int32) (*endpoint, error) {
	if e := c.find(key); e != nil && e.port == port {
		return e, nil
	}
	c.close(key)
	listener, err := c.Listen(port)
	if err != nil {
		return nil, err
	}
	opts := c.Balancer
	opts.Log = opts.Log.With(slog.String("cluster", key.String()))
	opts.Changed = func() { c.waker.Wake(key) }
	ctx, cancel := context.WithCancel(context.Background())
	e := &endpoint{Balancer: loadbalancer.New(opts), port: port}
	var served sync.WaitGroup
	served.Go(func() {
		if err := e.Serve(ctx, listener); err != nil {
			opts.Log.Error("A load balancer has ended", "port", port, "error", err)
		}
	})
	e.stop = func() {
		cancel()
		served.Wait()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open[key] = e
	return e, nil
}
