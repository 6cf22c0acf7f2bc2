package manager

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/millwright-dev/millwright/internal/controllers/capi/balancer"
	"github.com/millwright-dev/millwright/internal/controllers/capi/core"
	"github.com/millwright-dev/millwright/internal/loadbalancer"
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
	// Dial connects to a machine. Required.
	Dial func(ctx context.Context, address string) (net.Conn, error)
	// MaxConnections and MaxPerClient limit the connections to each endpoint, in total and of a client's address. Required.
	MaxConnections, MaxPerClient int
	// Ready is called once the objects have been read.
	Ready func()
	// Log is required.
	Log logr.Logger
}

// keepAlive finds clients that have vanished within about half a minute.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3}

// KeepAlive makes connections as load balancers do that reach machines by the network of this host.
func KeepAlive(ctx context.Context, address string) (net.Conn, error) {
	return (&net.Dialer{KeepAliveConfig: keepAlive}).DialContext(ctx, "tcp", address)
}

// RunLoadBalancers runs load balancers until ctx ends or they fail.
func RunLoadBalancers(ctx context.Context, cfg LoadBalancerConfig) error {
	scheme := Scheme()
	version, err := discoverClusterAPI(ctx, cfg.Log, cfg.Control)
	if err != nil {
		return err
	}
	core.AddToScheme(scheme, version)
	timeout := shutdown
	options := ctrl.Options{
		Scheme: scheme, Logger: lazyLog(cfg.Log), GracefulShutdownTimeout: &timeout,
		Cache:   cache.Options{DefaultTransform: cache.TransformStripManagedFields()},
		Metrics: metricsserver.Options{BindAddress: "0"}, HealthProbeBindAddress: "0",
		Controller: config.Controller{SkipNameValidation: ptr.To(true), UsePriorityQueue: ptr.To(false)}, // as in managerOptions
	}
	if cfg.Namespace != "" {
		options.Cache.DefaultNamespaces = map[string]cache.Config{cfg.Namespace: {}}
	}
	mgr, err := ctrl.NewManager(cfg.Control, options)
	if err != nil {
		return fmt.Errorf("setting up: %w", err)
	}
	controller := balancer.New(balancer.Options{
		Client: mgr.GetClient(), Clock: clock.RealClock{}, WatchFilter: cfg.WatchFilter,
		Name: cfg.Name, Host: cfg.Host, FirstPort: cfg.FirstPort, LastPort: cfg.LastPort,
		Listen: func(port int32) (net.Listener, error) {
			return (&net.ListenConfig{KeepAliveConfig: keepAlive}).Listen(ctx, "tcp", net.JoinHostPort(cfg.Address, fmt.Sprint(port)))
		},
		Balancer: loadbalancer.Options{
			Dial: cfg.Dial, MaxConnections: cfg.MaxConnections, MaxPerClient: cfg.MaxPerClient,
			Log: slog.New(logr.ToSlogHandler(cfg.Log)),
		},
	})
	defer controller.Close()
	if err := controller.SetupWithManager(mgr); err != nil {
		return err
	}
	if cfg.Ready != nil {
		go func() {
			if mgr.GetCache().WaitForCacheSync(ctx) {
				cfg.Ready()
			}
		}()
	}
	if err := mgr.Start(ctx); err != nil && !(ctx.Err() != nil && !errors.Is(err, context.DeadlineExceeded)) {
		return fmt.Errorf("running: %w", err)
	}
	return nil
}
