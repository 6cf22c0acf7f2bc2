// Package balancer runs the load balancers that MillwrightClusters request.
//
// Each load balancer has a port of this process. The port becomes the endpoint of the Cluster before it has machines,
// and never changes. The load balancer forwards connections to the API servers on the Cluster's control plane
// machines.
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
	// Client reads from the cache. Its scheme must have Cluster API's kinds. Required.
	Client client.Client
	// Live reads from the API server. It is used to find free ports before one is assigned. Required.
	Live client.Reader
	// Namespace is the namespace of the objects. If empty, all namespaces are used.
	Namespace string
	// Events records events on MillwrightClusters. Required.
	Events record.EventRecorder
	// Clock is required.
	Clock clock.PassiveClock
	// WatchFilter is the value of the label core.LabelWatchFilter that objects must have. If empty, all objects are
	// reconciled.
	WatchFilter string
	// Name is the name with which MillwrightClusters request this load balancer. Required.
	Name string
	// Host is the host name or address at which clients reach the ports. Required.
	Host string
	// FirstPort and LastPort are the range of ports for endpoints. Required.
	FirstPort, LastPort int32
	// MaxPerNamespace limits the ports of the MillwrightClusters in one namespace; 0 means no limit.
	MaxPerNamespace int
	// Lock is the leader election lock if several processes have this name. Only the leader assigns ports and writes
	// conditions, but all processes forward connections. If nil, this is the only process.
	Lock resourcelock.Interface
	// Ready is called once all ports that were endpoints at the start have been opened or cannot be opened. If nil,
	// nothing is called.
	Ready func()
	// Listen opens a port. Required.
	Listen func(port int32) (net.Listener, error)
	// Balancer configures the load balancer of each Cluster. The field Changed is ignored.
	Balancer loadbalancer.Options
}

// Controller reconciles MillwrightClusters. Create one with New, and stop it with Close.
type Controller struct {
	Options
	edge  edge.Reconciler[*infrav1.MillwrightCluster]
	waker *tasks.Waker
	start *start

	mu   sync.Mutex
	open map[types.NamespacedName]*endpoint
	// waiting has the MillwrightClusters that may get a port when another port is closed.
	waiting  map[types.NamespacedName]struct{}
	isLeader bool
}

// endpoint is an open port.
type endpoint struct {
	*loadbalancer.Balancer
	port int32
	// chosen reports whether this process has assigned the port while it was the leader. Otherwise, the port may
	// belong to another MillwrightCluster according to the current or the last leader.
	chosen bool
	// stop stops the balancer, and returns when it has stopped.
	stop func()
}

// New returns a Controller.
func New(opts Options) *Controller {
	if opts.Ready == nil {
		opts.Ready = func() {}
	}
	c := &Controller{
		Options: opts, waker: &tasks.Waker{}, start: newStart(opts.Ready), isLeader: opts.Lock == nil,
		open: map[types.NamespacedName]*endpoint{}, waiting: map[types.NamespacedName]struct{}{},
	}
	c.edge = edge.Reconciler[*infrav1.MillwrightCluster]{
		Reader: c.Client, Kind: &infrav1.MillwrightCluster{}, Pass: c.pass, Forget: c.release, Events: c.Events,
	}
	return c
}

// SetupWithManager registers the controller and its watches. It reconciles one object at a time, because all objects
// share the ports.
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
	for _, runnable := range []manager.RunnableFunc{c.elect, c.begin} {
		if err := mgr.Add(runnable); err != nil {
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
	c.wakeWaiting() // the endpoint is free even if its port was not open
}

func (c *Controller) pass(ctx context.Context, infra *infrav1.MillwrightCluster) (time.Duration, error) {
	if !c.selects(infra) {
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
	if p.claim { // the cache may not have a port that another process has just assigned
		if f, err = c.gather(ctx, c.Live, infra, cluster); err != nil {
			return 0, err
		}
		p = planFor(f)
	}
	return c.apply(ctx, infra, f, p)
}

// selects reports whether a MillwrightCluster requests this load balancer.
func (c *Controller) selects(infra *infrav1.MillwrightCluster) bool {
	requested := infra.Spec.ControlPlaneLoadBalancer
	return requested != nil && cmp.Or(requested.Name, infrav1.DefaultLoadBalancer) == c.Name && !core.ExternallyManaged(infra) &&
		core.Watched(c.WatchFilter, infra)
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

// awaitPort records that a MillwrightCluster has no port, unless reason is empty. It is reconciled again when a port
// is closed.
func (c *Controller) awaitPort(key types.NamespacedName, reason string) {
	if reason == "" {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting[key] = struct{}{}
}

// wakeWaiting triggers passes for the MillwrightClusters that wait for a port.
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

// choose records that an open port is assigned to its MillwrightCluster, if this process is the leader.
func (c *Controller) choose(e *endpoint) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e.chosen = e.chosen || c.isLeader
}

// displace closes a port if another MillwrightCluster than its new owner has it open, and triggers a pass for the
// other one, which reports that.
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

// listen opens the port of a MillwrightCluster, and closes another one that it may have open.
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
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := e.Serve(ctx, listener); err != nil {
			opts.Log.Error("Load balancer failed", "port", port, "error", err)
		}
	})
	e.stop = func() {
		cancel()
		serving.Wait()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open[key] = e
	return e, nil
}
