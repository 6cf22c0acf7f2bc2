package manager

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime"
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

	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podspec"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/service"
	"github.com/millwright-dev/millwright/internal/observe/metrics"
	"github.com/millwright-dev/millwright/internal/vm/identity"
)

// VMConfig configures a VM controller.
type VMConfig struct {
	// Infrastructure is the cluster of the VirtualMachines and their Pods. Required.
	Infrastructure *rest.Config
	// Namespace of the controller itself: of its lease, of its Service, and of the Secret with the key
	// of its certificate authority. It must exist. Required.
	Namespace string
	// Namespaces of the VirtualMachines. Empty means all.
	Namespaces []string
	// Authority signs the certificates of hypervisors. Nil means that of the Secret, which is created if
	// there is none.
	Authority *identity.Authority
	// Identity is that of this controller if others issue certificates, also those of hypervisors. Nil means
	// that Authority does. Otherwise Authority is for the server of API only.
	Identity *identity.Credentials
	// Certificates is the volume with the certificate of a hypervisor, with Identity. Nil means none.
	Certificates *VMCertificates
	// Service is where hypervisors reach the controller. Required.
	Service VMService
	// Guests says what is the same for all VirtualMachines.
	Guests VMGuests
	// API is how users reach consoles. The zero value means not at all.
	API VMAPI
	// Migration says how virtual machines migrate. The zero value has the defaults, and no limit.
	Migration VMMigration
	// ConcurrentSyncs is how many VirtualMachines are reconciled at the same time. Required.
	ConcurrentSyncs int
	// Election configures leader election. Its lease is VMLease; ClusterAPILease does not matter.
	Election Election
	// Pages are served over HTTP.
	Pages Pages
	// Log of the controller.
	Log logr.Logger
}

// VMLease is the name of the lease of the VM controller that leads.
const VMLease = "millwright-vm-controller"

// VMService is where hypervisors reach a VM controller.
type VMService struct {
	// Listen opens the port, when this process leads: what another one has is closed, so that who
	// connects to it is refused at once. Required.
	Listen func(context.Context) (net.Listener, error)
	// Endpoint is the gRPC target. Hypervisors keep that with which they started. Required.
	Endpoint string
	// Name of a Service without selector, which leads to the process that leads: its port "hypervisors", and
	// its port "subresources" to VMConfig.API. Empty means that the endpoint needs none.
	Name string
	// Address at which the Service reaches this process. Required with Name.
	Address netip.Addr
}

// VMPods says what the operator of the cluster wants of the Pods of hypervisors.
type VMPods = podspec.Options

// VMCertificates is the volume with the certificate of a hypervisor.
type VMCertificates = podspec.Certificates

const (
	// VMName in an attribute of VMCertificates stands for the name of the VirtualMachine.
	VMName = podspec.VMName
	// DefaultVMMigrationTime is the default of VMMigration.Time.
	DefaultVMMigrationTime = podspec.DefaultMigrationTime
	// MinVMMigrationTime is the least VMMigration.Time: that of a shutdown.
	MinVMMigrationTime = podspec.GracePeriod * time.Second
)

// VMGuests says what is the same for all VirtualMachines.
type VMGuests struct {
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
	// Pods says what the operator of the cluster wants of the Pods of hypervisors. The zero value means nothing.
	Pods VMPods
}

// VMMigration says how virtual machines migrate.
type VMMigration struct {
	// PerHost is how many leave or enter a host at a time when another one wants to leave it. 0
	// means any number.
	PerHost int
	// Bandwidth limits the copy of memory and disk, each, in bytes per second. 0 means QEMU's
	// default for the memory, and no limit for the disk.
	Bandwidth uint64
	// Time is how long one that has to leave its host may take before its guest is shut down. 0
	// means 15 minutes.
	Time time.Duration
}

// RunVMs runs a VM controller until ctx ends or the controller fails. Of those of a cluster one must lead;
// without leader election there must be only one.
func RunVMs(ctx context.Context, cfg VMConfig) error {
	pages, stop, err := serve(ctx, cfg.Pages)
	if err != nil {
		return err
	}
	defer stop()
	err = runVMs(ctx, cfg, pages)
	if ctx.Err() != nil && !errors.Is(err, context.DeadlineExceeded) {
		return nil // what was about to start reports that it cannot any more
	}
	return err
}

func runVMs(ctx context.Context, cfg VMConfig, pages *serving) error {
	if err := awaitServer(ctx, cfg.Log, cfg.Infrastructure, vmv1alpha1.SchemeGroupVersion, "virtualmachines"); err != nil {
		return err
	}
	scheme := Scheme()
	options, leases, err := vmOptions(ctx, cfg, scheme)
	if err != nil {
		return err
	}
	mgr, err := ctrl.NewManager(cfg.Infrastructure, options)
	if err != nil {
		return fmt.Errorf("setting up the VM controller: %w", err)
	}
	events, err := newEvents(cfg.Infrastructure, scheme)
	if err != nil {
		return err
	}
	defer events.shutdown()
	ports, err := addVMs(ctx, mgr, cfg, events)
	if err != nil {
		return err
	}
	if leases.lock != nil {
		if err := mgr.Add(leases.lock); err != nil {
			return fmt.Errorf("adding the lease: %w", err)
		}
	}
	if err := mgr.Add(pages.following(mgr, leases.read, leases.leads, ports.open)); err != nil {
		return fmt.Errorf("adding the pages: %w", err)
	}
	if err := mgr.Start(ctx); err != nil {
		return fmt.Errorf("running the VM controller: %w", err)
	}
	return nil
}

// vmLeadership is the part of a VM controller in the election. Without one it leads at once.
type vmLeadership struct {
	lock        *lock // nil without election
	read, leads <-chan struct{}
}

func (cfg VMConfig) leaseNamespace() string { return cmp.Or(cfg.Election.Namespace, cfg.Namespace) }

// installation names a VM controller and those that may lead instead of it.
func (cfg VMConfig) installation() string { return cfg.leaseNamespace() + "/" + VMLease }

func (cfg VMConfig) leadership() (vmLeadership, error) {
	if !cfg.Election.Enabled {
		now := make(chan struct{})
		close(now)
		return vmLeadership{read: now, leads: now}, nil
	}
	names := leaseNames{cfg.leaseNamespace(), []string{VMLease}}
	// Nothing runs on: the server for hypervisors waits for their calls.
	lock, err := newLockOf(cfg.Infrastructure, names, cfg.Election.RetryPeriod, func() bool { return true }, cfg.Log)
	if err != nil {
		return vmLeadership{}, err
	}
	return vmLeadership{lock: lock, read: lock.seen, leads: lock.won}, nil
}

// vmOptions has the cache begin with the leadership: what it shows includes all that earlier leaders wrote.
func vmOptions(ctx context.Context, cfg VMConfig, scheme *runtime.Scheme) (ctrl.Options, vmLeadership, error) {
	leases, err := cfg.leadership()
	if err != nil {
		return ctrl.Options{}, leases, err
	}
	timeout := shutdown
	options := ctrl.Options{
		Scheme: scheme,
		Logger: cfg.Log,
		Cache: cache.Options{
			ByObject: virtualmachine.CacheByObject(), DefaultTransform: cache.TransformStripManagedFields(),
			NewInformer: withLists(toolscache.NewSharedIndexInformer, consistent),
		},
		NewCache: newLeaderCache(ctx, leases.leads), MapperProvider: newMapper(ctx),
		Controller:              config.Controller{SkipNameValidation: ptr.To(true), UsePriorityQueue: ptr.To(false)},
		Metrics:                 metricsserver.Options{BindAddress: "0"},
		HealthProbeBindAddress:  "0",
		GracefulShutdownTimeout: &timeout,
	}
	for _, namespace := range cfg.Namespaces {
		if options.Cache.DefaultNamespaces == nil {
			options.Cache.DefaultNamespaces = map[string]cache.Config{}
		}
		options.Cache.DefaultNamespaces[namespace] = cache.Config{}
	}
	if leases.lock != nil {
		cfg.Election.tell(&options, leases.lock)
	}
	return options, leases, nil
}

// addVMs adds the controller of VirtualMachines and its ports.
func addVMs(ctx context.Context, mgr ctrl.Manager, cfg VMConfig, events *events) (*vmPorts, error) {
	live, err := client.NewWithWatch(cfg.Infrastructure, client.Options{Scheme: mgr.GetScheme()})
	if err != nil {
		return nil, fmt.Errorf("connecting to the infrastructure cluster: %w", err)
	}
	authority := cfg.Authority
	if authority == nil && (cfg.Identity == nil || cfg.API.Listen != nil) {
		err := patiently(ctx, func() (err error) {
			authority, err = service.LoadAuthority(ctx, live, cfg.Namespace)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	vms := virtualmachine.New(virtualmachine.Options{
		Client: mgr.GetClient(), APIReader: live, Events: events.recorder("vm-controller"), Clock: clock.RealClock{},
		Installation: cfg.installation(), Image: cfg.Guests.Image, Endpoint: cfg.Service.Endpoint, Accelerator: cfg.Guests.Accelerator,
		Authority: authority, Identity: cfg.Identity, Certificates: cfg.Certificates,
		Networks: cfg.Guests.Networks, HostPorts: cfg.Guests.HostPorts, Concurrency: cfg.ConcurrentSyncs,
		OneMachine: cfg.Guests.OneMachine, MigrationsPerHost: cfg.Migration.PerHost, Pods: cfg.Guests.Pods,
		Migration: podspec.Migration{Time: cfg.Migration.Time, Bandwidth: cfg.Migration.Bandwidth},
	})
	if err := vms.SetupWithManager(mgr); err != nil {
		return nil, err
	}
	ports := &vmPorts{
		cfg: cfg.Service, namespace: cfg.Namespace, client: live, open: make(chan struct{}), log: cfg.Log.WithName("port"),
		ports: []vmPort{{portHypervisors, cfg.Service.Listen, func(ctx context.Context, listener net.Listener) error { return vms.Server(listener).Start(ctx) }}},
	}
	if cfg.API.Listen != nil {
		api, err := newVMAPI(cfg, vms, live, authority)
		if err != nil {
			return nil, err
		}
		ports.ports = append(ports.ports, api)
	}
	if err := mgr.Add(ports); err != nil {
		return nil, fmt.Errorf("adding the ports of the VM controller: %w", err)
	}
	if err := mgr.Add(&metrics.VMs{Reader: mgr.GetCache(), Registerer: ctrlmetrics.Registry, Controller: cfg.installation()}); err != nil {
		return nil, fmt.Errorf("adding the metric of virtual machines: %w", err)
	}
	return ports, nil
}
