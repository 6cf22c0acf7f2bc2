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
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/authority"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podspec"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/rotation"
	"github.com/millwright-dev/millwright/internal/observe/metrics"
	"github.com/millwright-dev/millwright/internal/reconcile/relist"
	"github.com/millwright-dev/millwright/internal/vm/identity"
)

// VMConfig configures a VM controller.
type VMConfig struct {
	// Infrastructure is the cluster with the VirtualMachines and their Pods. Required.
	Infrastructure *rest.Config
	// Namespace is the namespace of the controller's lease, of its Service, and of the Secret with the key of
	// its certificate authority. It must exist. VirtualMachines in it get no Pods. Required.
	Namespace string
	// Namespaces are the namespaces of the VirtualMachines. Empty means all namespaces except Namespace.
	Namespaces []string
	// Authority signs the certificates of hypervisors. If nil, the authority in the Secret is used, which is
	// created if it does not exist.
	Authority *identity.Authority
	// Identity is the certificate of this controller if certificates, including those of hypervisors, are issued
	// elsewhere. If nil, Authority issues them. Otherwise, Authority is only for the server of API.
	Identity *identity.Credentials
	// Certificates is the volume with the certificate of a hypervisor. It is used with Identity. If nil, there
	// is none.
	Certificates *VMCertificates
	// Service is where hypervisors reach the controller. Required.
	Service VMService
	// Guests configures all VirtualMachines.
	Guests VMGuests
	// API configures access to consoles. The zero value disables it.
	API VMAPI
	// Migration configures migrations. The zero value means the defaults, without limits.
	Migration VMMigration
	// ConcurrentSyncs is the maximum number of VirtualMachines that are reconciled concurrently. Required.
	ConcurrentSyncs int
	// LeaseRenewals is the maximum of lease renewals per second that VirtualMachines with full leases may need
	// together. Renewals have a client of their own. 0 means DefaultVMLeaseRenewals.
	LeaseRenewals float64
	// Election configures leader election. Its lease is VMLease; ClusterAPILease is ignored.
	Election Election
	// Pages are the pages that are served over HTTP.
	Pages Pages
	// Log is the logger of the controller.
	Log logr.Logger
}

// DefaultVMLeaseRenewals is the default of VMConfig.LeaseRenewals.
const DefaultVMLeaseRenewals = authority.DefaultRenewals

// VMLease is the name of the lease of the leading VM controller.
const VMLease = "millwright-vm-controller"

// VMService is where hypervisors reach a VM controller.
type VMService struct {
	// Listen opens the port when this process becomes the leader. Other processes do not listen, so that
	// connections to them are refused immediately. Required.
	Listen func(context.Context) (net.Listener, error)
	// Endpoint is the gRPC target for hypervisors. Hypervisors keep the endpoint with which they were started.
	// Required.
	Endpoint string
	// Name is the name of a Service without a selector that leads to the leader. Its port "hypervisors" is for
	// the endpoint, and its port "subresources" for VMConfig.API. Empty means that the endpoint does not use a
	// Service.
	Name string
	// Address is the address at which the Service reaches this process. Required with Name.
	Address netip.Addr
}

// VMPods configures the Pods of hypervisors.
type VMPods = podspec.Options

// VMCertificates is the volume with the certificate of a hypervisor.
type VMCertificates = podspec.Certificates

const (
	// VMName is the placeholder for the name of the VirtualMachine in an attribute of VMCertificates.
	VMName = podspec.VMName
	// DefaultVMMigrationTime is the default of VMMigration.Time.
	DefaultVMMigrationTime = podspec.DefaultMigrationTime
	// MinVMMigrationTime is the minimum of VMMigration.Time, which is the time of a shutdown.
	MinVMMigrationTime = podspec.DefaultGracePeriod
	// DefaultVMDowntimeLimit is the default of VMMigrationDefaults.DowntimeLimit.
	DefaultVMDowntimeLimit = podspec.DefaultDowntimeLimit
	// MaxVMDowntimeLimit is the maximum of VMMigrationDefaults.DowntimeLimit.
	MaxVMDowntimeLimit = podspec.MaxDowntimeLimit
	// DefaultVMCompletionTimeoutPerGiB is the default of VMMigrationDefaults.CompletionTimeoutPerGiB.
	DefaultVMCompletionTimeoutPerGiB = podspec.DefaultCompletionTimeoutPerGiB
	// MaxVMCompletionTimeoutPerGiB is the maximum of VMMigrationDefaults.CompletionTimeoutPerGiB.
	MaxVMCompletionTimeoutPerGiB = podspec.MaxCompletionTimeoutPerGiB
)

// VMMigrationDefaults are the defaults of spec.migration of virtual machines.
type VMMigrationDefaults = podspec.MigrationDefaults

// VMOverlay configures the network between guests on different hosts.
type VMOverlay struct {
	podspec.Overlay
	// NetworkOf returns the network of the guests in a namespace. Guests in the same network reach each other. If nil,
	// each namespace has its own network.
	NetworkOf func(namespace string) string
}

// VMGuests configures all VirtualMachines.
type VMGuests struct {
	// Image is the container image of hypervisors if the VirtualMachine does not set one.
	Image string
	// Images are the other container images that VirtualMachines may set, as exact references. Empty means none.
	Images []string
	// Attachments are the NetworkAttachmentDefinitions that VirtualMachines may name, as NAMESPACE/NAME. Empty means
	// none.
	Attachments []string
	// Networks are the prefixes of the guests' user-mode network. Empty means no network.
	Networks []netip.Prefix
	// Overlay configures the network between guests on different hosts. The zero value disables it.
	Overlay VMOverlay
	// HostPorts are the TCP ports on the host's loopback interface that guests may connect to. Empty means none.
	HostPorts []uint16
	// OneMachine reports that all hosts run on one machine, which has all volumes.
	OneMachine bool
	// Accelerator is the accelerator of QEMU: auto, kvm or tcg. Empty means auto.
	Accelerator string
	// Pods configures the Pods of hypervisors.
	Pods VMPods
}

// VMMigration configures the migration of virtual machines.
type VMMigration struct {
	// PerHost limits how many migrations may use a host concurrently before another one starts from it. 0 means
	// no limit.
	PerHost int
	// Bandwidth limits the copy of memory and of the disk, each in bytes per second. 0 means QEMU's default for
	// memory, and no limit for the disk.
	Bandwidth uint64
	// Time is how long the migration of a virtual machine that must leave its host may take before its guest is
	// shut down. 0 means 15 minutes.
	Time time.Duration
	// HostShutdown is how long a kubelet gives a hypervisor to terminate when the host shuts down or evicts its Pod. 0 means
	// that the time is not known, and that guests are shut down instead of migrated.
	HostShutdown time.Duration
	// Defaults apply to virtual machines that set no others.
	Defaults VMMigrationDefaults
}

// RunVMs runs a VM controller until ctx is canceled or the controller fails. Only one controller of a cluster
// may be active, so without leader election there must be only one.
func RunVMs(ctx context.Context, cfg VMConfig) error {
	pages, stop, err := serve(ctx, cfg.Pages)
	if err != nil {
		return err
	}
	defer stop()
	err = runVMs(ctx, cfg, pages)
	if ctx.Err() != nil && !errors.Is(err, context.DeadlineExceeded) {
		return nil // components that were starting fail during the shutdown
	}
	return err
}

func runVMs(ctx context.Context, cfg VMConfig, pages *serving) error {
	cfg.Infrastructure = relist.Config(cfg.Infrastructure)
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	if err := awaitServer(ctx, cfg.Log, cfg.Infrastructure, vmv1alpha1.SchemeGroupVersion, "virtualmachines"); err != nil {
		return err
	}
	scheme := Scheme()
	options, leases, err := vmOptions(ctx, cfg, scheme, func() { fail(ErrRestored) })
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
	err = mgr.Start(ctx)
	if cause := context.Cause(ctx); errors.Is(cause, ErrRestored) {
		return cause
	}
	if err != nil {
		return fmt.Errorf("running the VM controller: %w", err)
	}
	return nil
}

// vmLeadership is the leadership of a VM controller. Without an election, it leads immediately.
type vmLeadership struct {
	lock        *lock // nil without an election
	read, leads <-chan struct{}
}

func (cfg VMConfig) leaseNamespace() string { return cmp.Or(cfg.Election.Namespace, cfg.Namespace) }

// installation returns the name that a VM controller shares with its standby processes.
func (cfg VMConfig) installation() string { return cfg.leaseNamespace() + "/" + VMLease }

func (cfg VMConfig) leadership() (vmLeadership, error) {
	if !cfg.Election.Enabled {
		now := make(chan struct{})
		close(now)
		return vmLeadership{read: now, leads: now}, nil
	}
	names := leaseNames{cfg.leaseNamespace(), []string{VMLease}}
	// No work outlasts the leadership, because the server for hypervisors waits for their calls.
	lock, err := newLockOf(cfg.Infrastructure, names, cfg.Election, func() bool { return true }, cfg.Log)
	if err != nil {
		return vmLeadership{}, err
	}
	return vmLeadership{lock: lock, read: lock.seen, leads: lock.won}, nil
}

// vmOptions returns options in which the cache starts when this process becomes the leader, so that it contains
// everything that earlier leaders wrote. restored is called if the cluster was restored from an older backup.
func vmOptions(ctx context.Context, cfg VMConfig, scheme *runtime.Scheme, restored func()) (ctrl.Options, vmLeadership, error) {
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
			NewInformer: withLists(unlessRestored(toolscache.NewSharedIndexInformer, restored), consistent),
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
		cfg.Election.configure(&options, leases.lock)
	}
	return options, leases, nil
}

// renewalClient returns a client for renewals of leases, whose requests do not wait for others of this process.
func renewalClient(cfg VMConfig, scheme *runtime.Scheme) (client.Client, error) {
	own := rest.CopyConfig(cfg.Infrastructure)
	own.RateLimiter = nil
	own.QPS, own.Burst = authority.RenewalRequests(cfg.LeaseRenewals)
	renewals, err := client.New(own, client.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("connecting to the infrastructure cluster: %w", err)
	}
	return renewals, nil
}

// addVMs adds the controller of VirtualMachines and its ports.
func addVMs(ctx context.Context, mgr ctrl.Manager, cfg VMConfig, events *events) (*vmPorts, error) {
	live, err := client.NewWithWatch(cfg.Infrastructure, client.Options{Scheme: mgr.GetScheme()})
	if err != nil {
		return nil, fmt.Errorf("connecting to the infrastructure cluster: %w", err)
	}
	cfg.LeaseRenewals = cmp.Or(cfg.LeaseRenewals, DefaultVMLeaseRenewals)
	renewals, err := renewalClient(cfg, mgr.GetScheme())
	if err != nil {
		return nil, err
	}
	ca, begin, err := addAuthority(ctx, mgr, cfg, live, events)
	if err != nil {
		return nil, err
	}
	vms := virtualmachine.New(virtualmachine.Options{
		Client: mgr.GetClient(), APIReader: live, Events: events.recorder("vm-controller"), Clock: clock.RealClock{},
		Installation: cfg.installation(), Image: cfg.Guests.Image, Images: cfg.Guests.Images, Attachments: cfg.Guests.Attachments, Namespace: cfg.Namespace, Endpoint: cfg.Service.Endpoint, Accelerator: cfg.Guests.Accelerator,
		Authority: ca, Begin: begin, Identity: cfg.Identity, Certificates: cfg.Certificates,
		Networks: cfg.Guests.Networks, Overlay: cfg.Guests.Overlay.Overlay, NetworkOf: cfg.Guests.Overlay.NetworkOf, HostPorts: cfg.Guests.HostPorts, Concurrency: cfg.ConcurrentSyncs,
		OneMachine: cfg.Guests.OneMachine, MigrationsPerHost: cfg.Migration.PerHost, Pods: cfg.Guests.Pods,
		Migration: podspec.Migration{Time: cfg.Migration.Time, HostShutdown: cfg.Migration.HostShutdown, Bandwidth: cfg.Migration.Bandwidth, MigrationDefaults: cfg.Migration.Defaults},
		Renewals:  cfg.LeaseRenewals, RenewalClient: renewals,
	})
	if err := vms.SetupWithManager(mgr); err != nil {
		return nil, err
	}
	ports := &vmPorts{
		cfg: cfg.Service, namespace: cfg.Namespace, client: live, open: make(chan struct{}), log: cfg.Log.WithName("port"),
		ports: []vmPort{{portHypervisors, after(begin, cfg.Service.Listen), func(ctx context.Context, listener net.Listener) error { return vms.Server(listener).Start(ctx) }}},
	}
	if cfg.API.Listen != nil {
		api, err := newVMAPI(cfg, vms, live, ca)
		if err != nil {
			return nil, err
		}
		ports.ports = append(ports.ports, api)
	}
	if err := mgr.Add(ports); err != nil {
		return nil, fmt.Errorf("adding the ports of the VM controller: %w", err)
	}
	if err := mgr.Add(&metrics.VMs{Reader: mgr.GetCache(), Registerer: ctrlmetrics.Registry, Controller: cfg.installation(), Renewals: cfg.LeaseRenewals}); err != nil {
		return nil, fmt.Errorf("adding the metric of virtual machines: %w", err)
	}
	return ports, nil
}

// addAuthority returns the certificate authority; nil if none is needed. If it is in the Secret, addAuthority also adds
// its rotation, and begin reads it again: another process may have changed it before this one became the leader.
func addAuthority(ctx context.Context, mgr ctrl.Manager, cfg VMConfig, live client.Client, events *events) (authority *identity.Authority, begin func(context.Context) error, err error) {
	begin = func(context.Context) error { return nil }
	if cfg.Authority != nil || cfg.Identity != nil && cfg.API.Listen == nil {
		return cfg.Authority, begin, nil
	}
	err = retry(ctx, func() (err error) {
		authority, err = rotation.Load(ctx, live, cfg.Namespace)
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	rotating := rotation.New(rotation.Options{
		Client: live, Pods: mgr.GetClient(), Namespace: cfg.Namespace, Authority: authority,
		Events: events.recorder("vm-controller"), Clock: clock.RealClock{},
	})
	if err := mgr.Add(rotating); err != nil {
		return nil, nil, fmt.Errorf("adding the rotation of the certificate authority: %w", err)
	}
	state := func() metrics.VMAuthorityState {
		is := rotating.State()
		return metrics.VMAuthorityState{Phase: string(is.Phase), Pending: is.Pending, Expires: is.Expires}
	}
	if err := mgr.Add(&metrics.VMAuthority{State: state, Registerer: ctrlmetrics.Registry}); err != nil {
		return nil, nil, fmt.Errorf("adding the metrics of the certificate authority: %w", err)
	}
	return authority, func(ctx context.Context) error {
		return retry(ctx, func() error { return rotating.Reload(ctx) })
	}, nil
}

// after returns a listen function that calls begin first.
func after(begin func(context.Context) error, listen func(context.Context) (net.Listener, error)) func(context.Context) (net.Listener, error) {
	return func(ctx context.Context) (net.Listener, error) {
		if err := begin(ctx); err != nil {
			return nil, err
		}
		return listen(ctx)
	}
}
