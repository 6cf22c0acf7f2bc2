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
)

// LoadBalancerConfig configures the load balancers of control planes.
type LoadBalancerConfig struct {
	// Control is the cluster of the MillwrightClusters. Required.
	Control *rest.Config
	// Namespace of the MillwrightClusters. Empty means all.
	Namespace string
	// WatchFilter is the value of the label cluster.x-k8s.io/watch-filter that they must have. Empty means any.
	WatchFilter string
	// Name by which MillwrightClusters ask for this process. Required.
	Name string
	// Host is the name or address by which clients reach its ports, and Address where they are opened. Required.
	Host, Address string
	// FirstPort and LastPort are the ports of endpoints. Required.
	FirstPort, LastPort int32
	// MaxPerNamespace is how many of them the MillwrightClusters of one namespace may have; 0 for any number.
	MaxPerNamespace int
	// Lease is that by which one of several processes with this name leads: it gives ports away, and all of them
	// forward. With an empty name this is the only process.
	Lease types.NamespacedName
	// Pages are what is served over HTTP.
	Pages Pages
	// Dial connects to a machine. Required.
	Dial func(ctx context.Context, address string) (net.Conn, error)
	// MaxConnections and MaxPerClient limit the connections to each endpoint, in total and of a client's address. Required.
	MaxConnections, MaxPerClient int
	// Ready is called once the ports are open that were endpoints in the beginning. Default: nothing is called.
	Ready func()
	// Log is required.
	Log logr.Logger
}

// RunLoadBalancers runs load balancers until ctx ends or they fail.
func RunLoadBalancers(ctx context.Context, cfg LoadBalancerConfig) error {
	pages, stop, err := serve(ctx, cfg.Pages)
	if err != nil {
		return err
	}
	defer stop()
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
			Log: slog.New(logr.ToSlogHandler(cfg.Log)),
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

// loadBalancerManager returns the manager of their controller. It takes no part in an election: who does not lead forwards too.
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
