package manager

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/config"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/millwright-dev/millwright/internal/controllers/capi/balancer"
	"github.com/millwright-dev/millwright/internal/controllers/capi/core"
	"github.com/millwright-dev/millwright/internal/loadbalancer"
	"github.com/millwright-dev/millwright/internal/manager/lazylog"
	"github.com/millwright-dev/millwright/internal/reconcile/relist"
)

// LoadBalancerConfig configures the load balancers of control planes.
type LoadBalancerConfig struct {
	// Control is the cluster with the MillwrightClusters. Required.
	Control *rest.Config
	// Namespace is the namespace of the MillwrightClusters. Empty means all namespaces.
	Namespace string
	// WatchFilter is the value of the label cluster.x-k8s.io/watch-filter that MillwrightClusters must have. If
	// empty, all are served.
	WatchFilter string
	// Name is the name by which MillwrightClusters refer to this load balancer. Required.
	Name string
	// Host is the name or address at which clients reach the ports. Address is the address at which the ports
	// are opened. Required.
	Host, Address string
	// FirstPort and LastPort are the ports of endpoints. Required.
	FirstPort, LastPort int32
	// MaxPerNamespace is the maximum number of ports for the MillwrightClusters of one namespace. 0 means no
	// limit.
	MaxPerNamespace int
	// Lease is the lease for the election among processes with the same name. The leader assigns ports, and all
	// of them forward connections. If its name is empty, this must be the only process.
	Lease types.NamespacedName
	// Pages are the pages that are served over HTTP.
	Pages Pages
	// Dial connects to a machine. Required.
	Dial func(ctx context.Context, address string) (net.Conn, error)
	// MaxConnections and MaxPerClient limit the connections to each endpoint, in total and per client address.
	// Required.
	MaxConnections, MaxPerClient int
	// MaxTotalConnections limits the connections to all endpoints together. Half of them are reserved, in equal parts
	// for each port. Required.
	MaxTotalConnections int
	// Ready is called once all ports are open that were assigned at startup. Optional.
	Ready func()
	// Log is required.
	Log logr.Logger
}

// RunLoadBalancers runs load balancers until ctx is canceled or they fail.
func RunLoadBalancers(ctx context.Context, cfg LoadBalancerConfig) error {
	pages, stop, err := serve(ctx, cfg.Pages)
	if err != nil {
		return err
	}
	defer stop()
	cfg.Control = relist.Config(cfg.Control)
	mgr, err := loadBalancerManager(ctx, cfg)
	if err != nil {
		return err
	}
	pages.missing.Store(missingCaches)
	events, err := newEvents(cfg.Control, mgr.GetScheme())
	if err != nil {
		return err
	}
	defer events.shutdown()
	options := balancer.Options{
		Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Events: events.recorder("load-balancer-controller"), Clock: clock.RealClock{}, Namespace: cfg.Namespace, WatchFilter: cfg.WatchFilter,
		Name: cfg.Name, Host: cfg.Host, FirstPort: cfg.FirstPort, LastPort: cfg.LastPort, MaxPerNamespace: cfg.MaxPerNamespace,
		Listen: func(port int32) (net.Listener, error) {
			return loadbalancer.Listen(ctx, net.JoinHostPort(cfg.Address, fmt.Sprint(port)))
		},
		Balancer: loadbalancer.Options{
			Dial: cfg.Dial, MaxConnections: cfg.MaxConnections, MaxPerClient: cfg.MaxPerClient,
			Capacity: loadbalancer.NewCapacity(cfg.MaxTotalConnections, int(cfg.LastPort-cfg.FirstPort)+1),
			Log:      slog.New(logr.ToSlogHandler(cfg.Log)),
		},
		Ready: func() {
			pages.missing.Store("")
			if cfg.Ready != nil {
				cfg.Ready()
			}
		},
	}
	if cfg.Lease.Name != "" {
		locks, err := locksOf(cfg.Control, leaseNames{cfg.Lease.Namespace, []string{cfg.Lease.Name}})
		if err != nil {
			return err
		}
		options.Lock = locks[0]
	}
	controller := balancer.New(options)
	defer controller.Close()
	if err := controller.SetupWithManager(mgr); err != nil {
		return err
	}
	if err := ctrlmetrics.Registry.Register(controller); err != nil {
		return fmt.Errorf("registering the metrics of load balancers: %w", err)
	}
	defer ctrlmetrics.Registry.Unregister(controller)
	if err := mgr.Start(ctx); err != nil && !(ctx.Err() != nil && !errors.Is(err, context.DeadlineExceeded)) {
		return fmt.Errorf("running: %w", err)
	}
	return nil
}

// loadBalancerManager returns the manager of the load balancer controller. It takes no part in an election,
// because all processes forward connections.
func loadBalancerManager(ctx context.Context, cfg LoadBalancerConfig) (ctrl.Manager, error) {
	scheme := Scheme()
	version, err := discoverClusterAPI(ctx, cfg.Log, cfg.Control)
	if err != nil {
		return nil, err
	}
	core.AddToScheme(scheme, version)
	timeout := shutdown
	options := ctrl.Options{
		Scheme: scheme, Logger: lazylog.New(cfg.Log), GracefulShutdownTimeout: &timeout,
		Cache:   cache.Options{DefaultTransform: cache.TransformStripManagedFields()},
		Metrics: metricsserver.Options{BindAddress: "0"}, HealthProbeBindAddress: "0",
		Controller: config.Controller{SkipNameValidation: ptr.To(true), UsePriorityQueue: ptr.To(false)}, // as in managerOptions
	}
	if cfg.Namespace != "" {
		options.Cache.DefaultNamespaces = map[string]cache.Config{cfg.Namespace: {}}
	}
	mgr, err := ctrl.NewManager(cfg.Control, options)
	if err != nil {
		return nil, fmt.Errorf("setting up: %w", err)
	}
	return mgr, nil
}
