package manager

import (
	"context"
	"fmt"
	"net"
	"net/netip"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/service"
)

// VMConfig configures a VM controller.
type VMConfig struct {
	// Infrastructure is the cluster where VirtualMachines and their Pods are, in all
	// namespaces. Required.
	Infrastructure *rest.Config
	// Namespace is where the controller keeps its authority's key. It must exist.
	// Required.
	Namespace string
	// Listener is where hypervisors reach the controller; RunVMs closes it. Endpoint
	// is how: a gRPC target. Both required.
	Listener net.Listener
	Endpoint string
	// Image is the container image of hypervisors whose VirtualMachine names none.
	Image string
	// Networks are the prefixes of the guests' user-mode network. Empty: no network.
	Networks []netip.Prefix
	// Accelerator is what QEMU is to use: auto, kvm or tcg. Empty: auto.
	Accelerator string
	// ConcurrentSyncs is how many VirtualMachines are looked at at the same time.
	// Required.
	ConcurrentSyncs int
	// Log is where everything is logged to.
	Log logr.Logger
}

// RunVMs runs a VM controller until ctx ends, or until it cannot go on. There must be one
// only.
func RunVMs(ctx context.Context, cfg VMConfig) error {
	defer cfg.Listener.Close() // the server closes it too
	scheme := Scheme()
	timeout := shutdown
	mgr, err := ctrl.NewManager(cfg.Infrastructure, ctrl.Options{
		Scheme:                  scheme,
		Logger:                  cfg.Log,
		Cache:                   cache.Options{ByObject: virtualmachine.CacheByObject(), DefaultTransform: cache.TransformStripManagedFields()},
		Controller:              config.Controller{SkipNameValidation: ptr.To(true), UsePriorityQueue: ptr.To(false)},
		Metrics:                 metricsserver.Options{BindAddress: "0"},
		HealthProbeBindAddress:  "0",
		GracefulShutdownTimeout: &timeout,
	})
	if err != nil {
		return fmt.Errorf("setting up the VM controller: %w", err)
	}
	events, err := newEvents(cfg.Infrastructure, scheme)
	if err != nil {
		return err
	}
	defer events.shutdown()
	if err := addVMs(ctx, mgr, cfg, events); err != nil {
		return err
	}
	if err := mgr.Start(ctx); err != nil {
		return fmt.Errorf("running the VM controller: %w", err)
	}
	return nil
}

// addVMs is the list of what a VM controller consists of.
func addVMs(ctx context.Context, mgr ctrl.Manager, cfg VMConfig, events *events) error {
	live, err := client.New(cfg.Infrastructure, client.Options{Scheme: mgr.GetScheme()})
	if err != nil {
		return fmt.Errorf("connecting to the infrastructure cluster: %w", err)
	}
	authority, err := service.LoadAuthority(ctx, live, cfg.Namespace)
	if err != nil {
		return err
	}
	vms := virtualmachine.New(virtualmachine.Options{
		Client: mgr.GetClient(), APIReader: live, Events: events.recorder("vm-controller"), Clock: clock.RealClock{},
		Image: cfg.Image, Endpoint: cfg.Endpoint, Authority: authority, Accelerator: cfg.Accelerator,
		Networks: cfg.Networks, Concurrency: cfg.ConcurrentSyncs,
	})
	if err := vms.SetupWithManager(mgr); err != nil {
		return err
	}
	if err := mgr.Add(vms.Server(cfg.Listener)); err != nil {
		return fmt.Errorf("adding the service for hypervisors: %w", err)
	}
	return nil
}
