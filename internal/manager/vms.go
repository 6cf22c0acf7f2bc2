package manager

import (
	"context"
	"fmt"
	"net"
	"net/netip"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/service"
	"github.com/millwright-dev/millwright/internal/observe/metrics"
)

// VMConfig configures a VM controller.
type VMConfig struct {
	// Infrastructure is the cluster of the VirtualMachines and their Pods, in all namespaces.
	// Required.
	Infrastructure *rest.Config
	// Namespace of the Secret with the key of the controller's certificate authority. It must
	// exist. Required.
	Namespace string
	// Listener of the service for hypervisors, which RunVMs closes. Endpoint is its gRPC
	// target. Both are required.
	Listener net.Listener
	Endpoint string
	// Image is the container image of hypervisors if the VirtualMachine names none.
	Image string
	// Networks are the prefixes of the guests' user-mode network. Empty means no network.
	Networks []netip.Prefix
	// HostPorts are the TCP ports of a host's loopback that guests may connect to. Empty
	// means none.
	HostPorts []uint16
	// OneMachine says that all hosts are on one machine, which has all volumes.
	OneMachine bool
	// Accelerator of QEMU: auto, kvm or tcg. Empty means auto.
	Accelerator string
	// ConcurrentSyncs is how many VirtualMachines are reconciled at the same time. Required.
	ConcurrentSyncs int
	// Log of the controller.
	Log logr.Logger
}

// RunVMs runs a VM controller until ctx ends or the controller fails. There must be only one per
// cluster.
func RunVMs(ctx context.Context, cfg VMConfig) error {
	defer cfg.Listener.Close() // the server closes it too
	scheme := Scheme()
	timeout := shutdown
	mgr, err := ctrl.NewManager(cfg.Infrastructure, ctrl.Options{
		Scheme: scheme,
		Logger: cfg.Log,
		Cache: cache.Options{
			ByObject: virtualmachine.CacheByObject(), DefaultTransform: cache.TransformStripManagedFields(),
			NewInformer: withLists(toolscache.NewSharedIndexInformer, consistent),
		},
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

// addVMs adds the controller of VirtualMachines and the service for hypervisors.
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
		Networks: cfg.Networks, HostPorts: cfg.HostPorts, Concurrency: cfg.ConcurrentSyncs,
		OneMachine: cfg.OneMachine,
	})
	if err := vms.SetupWithManager(mgr); err != nil {
		return err
	}
	if err := mgr.Add(vms.Server(cfg.Listener)); err != nil {
		return fmt.Errorf("adding the service for hypervisors: %w", err)
	}
	if err := mgr.Add(&metrics.VMs{Reader: mgr.GetCache(), Registerer: ctrlmetrics.Registry}); err != nil {
		return fmt.Errorf("adding the metric of virtual machines: %w", err)
	}
	return nil
}
