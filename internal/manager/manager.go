// Package manager runs the controllers: the only list of them, the caches that they share, leader
// election, and what is served over HTTP.
package manager

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	ctrlmanager "sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/driver/registry"
	"github.com/millwright-dev/millwright/internal/controllers/capi/core"
	"github.com/millwright-dev/millwright/internal/controllers/machine"
	"github.com/millwright-dev/millwright/internal/controllers/machineset"
	"github.com/millwright-dev/millwright/internal/lifecycle/drain"
	"github.com/millwright-dev/millwright/internal/lifecycle/orphans"
	"github.com/millwright-dev/millwright/internal/lifecycle/outage"
	"github.com/millwright-dev/millwright/internal/lifecycle/scarcity/capacity"
	"github.com/millwright-dev/millwright/internal/manager/lazylog"
	"github.com/millwright-dev/millwright/internal/observe/metrics"
	"github.com/millwright-dev/millwright/internal/reconcile/fieldindex"
	"github.com/millwright-dev/millwright/internal/reconcile/target"
	"github.com/millwright-dev/millwright/internal/reconcile/tasks"
)

// Config configures a manager.
type Config struct {
	// Control is the cluster where the Machines live. Required.
	Control *rest.Config
	// Target is the cluster that nodes join. Nil means that there is none.
	Target *rest.Config
	// Namespace of the Machines in the control cluster. Required unless APIs is APICAPI
	// alone: then empty means all namespaces.
	Namespace string
	// APIs that the manager serves. Empty means APIMCM.
	APIs []API
	// Half is the half of APIMCM that the manager serves. Empty means both.
	Half Half
	// ClusterAPI configures APICAPI.
	ClusterAPI ClusterAPI
	// Webhooks configures the webhooks of the APIs.
	Webhooks Webhooks
	// Drivers create and delete instances, by the providers of classes and MillwrightMachines.
	// Drivers may come and go while the manager runs. Required, but for HalfSets; APICAPI needs
	// drivers with names.
	Drivers *registry.Registry
	// Installation is the name by which the driver distinguishes its VMs from those of other
	// installations.
	Installation string
	// Runnables are started with the controllers, in the leader only.
	Runnables []ctrlmanager.Runnable

	// Address and Port of /healthz, /readyz, /livez, /configz and /metrics, over plain HTTP. Port 0
	// serves nothing.
	Address string
	Port    int
	// Flags are the values that /configz serves, by name.
	Flags map[string]string
	// Profiling configures profiles at the same port.
	Profiling Profiling
	// ConcurrentSyncs is how many objects of one kind are reconciled at the same time, and how
	// many driver calls run at the same time. Required.
	ConcurrentSyncs int
	// ResyncPeriod is how often all objects are reconciled without an event. Zero means
	// controller-runtime's default.
	ResyncPeriod time.Duration

	// CreationTimeout is the time after which a Machine that has not joined is Failed. Of this and all other
	// limits of a Machine, zero means the default, and a negative value none at all.
	CreationTimeout time.Duration
	// ResourceExhaustedRetry is the time between creations that fail with ResourceExhausted.
	ResourceExhaustedRetry time.Duration
	// Fallback is when Machines are made with another class than their first choice.
	Fallback Fallback
	// NodeConditions make a Machine unhealthy unless they are False.
	NodeConditions []string
	// Health is how long Machines may be unhealthy.
	Health machine.Health
	// Drain configures drains.
	Drain Drain
	// Timeouts are those of Machines that neither a drain nor their health has.
	Timeouts Timeouts
	// Orphans configures the collection of orphaned VMs.
	Orphans Orphans
	// Overshoot is when MachineSets with too many Machines are frozen.
	Overshoot machineset.Overshoot
	// ProtectNodes keeps the cluster autoscaler from removing nodes during a rollout.
	ProtectNodes bool
	// EnforceMinReadySeconds has Machines count as available only after minReadySeconds.
	EnforceMinReadySeconds bool
	// RecordJoins has every new Machine say in an annotation how long its node took to join.
	RecordJoins bool
	// BootstrapTokenGroups are the groups of bootstrap tokens' bearers, separated by commas.
	BootstrapTokenGroups string

	// NodeCertificates configures the approval of the certificates with which nodes join.
	NodeCertificates NodeCertificates

	// Election configures leader election.
	Election Election
	// Log of all controllers.
	Log logr.Logger

	// olderKinds are the kinds of classes before MachineClass that the control cluster serves.
	olderKinds []string
	// lacksSelector reports that the CRDs have no status.selector.
	lacksSelector bool
	// outOfRange is called when a driver begins to answer OutOfRange: it found several
	// instances of a machine.
	outOfRange func()
	// outages reports whether timeouts stand still.
	outages *outage.Reporter
	// work times what is done for Machines.
	work *metrics.Work
	// machines finds Machines in the cache.
	machines *fieldindex.Informers
	// capacity is what is known of the capacity of classes; nil without the Machine controller.
	capacity *capacity.Memory
	// unreadable reports objects that the cache cannot read.
	unreadable *unreadable
}

// Drain configures drains.
type Drain struct {
	// Timeout and MaxEvictRetries are those of machine.Drain.
	Timeout         time.Duration
	MaxEvictRetries int32
	// Strategy, DetachTimeout and ReattachTimeout are those of drain.Options.
	Strategy                       drain.Strategy
	DetachTimeout, ReattachTimeout time.Duration
}

// Timeouts are the times that a Machine may take for a phase of its life, unless its spec says otherwise.
type Timeouts struct {
	// Preserve is how long a preserved Machine is kept.
	Preserve time.Duration
	// InPlaceUpdate is how long the update of a node in place may take.
	InPlaceUpdate time.Duration
}

// NodeCertificates configures the approval of the certificates with which nodes join the target
// cluster by bootstrap token. It is only for APIMCM: no other API has bootstrap tokens of ours.
type NodeCertificates struct {
	// Approve has the manager decide on the requests of its Machines' tokens.
	Approve bool
	// Reserved reports whether no Machine may have a node of that name. Nil means that none is
	// reserved.
	Reserved func(node string) bool
}

// Orphans configures the collection of orphaned VMs.
type Orphans struct {
	// Mode is what is done about them. Empty means that they are deleted.
	Mode orphans.Mode
	// Period is the time between two searches. Zero means none.
	Period time.Duration
}

// shutdown is how long controllers and tasks may take to end.
const shutdown = 30 * time.Second

// Scheme returns a scheme with Kubernetes' kinds and all of Millwright's.
func Scheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	utilruntime.Must(clientgoscheme.AddToScheme(scheme))
	utilruntime.Must(v1alpha1.AddToScheme(scheme))
	utilruntime.Must(vmv1alpha1.AddToScheme(scheme))
	utilruntime.Must(infrav1.AddToScheme(scheme))
	return scheme
}

// Run runs a manager until ctx ends or the manager fails.
func Run(ctx context.Context, cfg Config) error {
	pages, stop, err := serve(ctx, Pages{Address: cfg.Address, Port: cfg.Port, Flags: cfg.Flags, Profiling: cfg.Profiling})
	if err != nil {
		return err
	}
	defer stop()
	err = run(ctx, cfg, pages)
	if ctx.Err() != nil && !errors.Is(err, context.DeadlineExceeded) {
		return nil // what was about to start reports that it cannot any more
	}
	return err
}

func run(ctx context.Context, cfg Config, pages *serving) error {
	scheme, err := prepare(ctx, cfg)
	if err != nil {
		return err
	}
	cfg.lacksSelector = cfg.runs(HalfSets) && lacksSelector(ctx, cfg)
	if cfg.runs(HalfMachines) {
		if cfg.olderKinds, err = servedKinds(ctx, cfg); err != nil {
			return err
		}
	}
	runner := tasks.New(cfg.ConcurrentSyncs)
	cfg.machines = &fieldindex.Informers{}
	cfg.unreadable = &unreadable{log: cfg.Log.WithName("cache"), scheme: scheme, namespace: cfg.Namespace}
	options, err := managerOptions(cfg, scheme, runner)
	if err != nil {
		return err
	}
	read, leads := make(chan struct{}), make(chan struct{})
	leases, elects := options.LeaderElectionResourceLockInterface.(*lock)
	if elects {
		read, leads = leases.seen, leases.won
	} else {
		close(read)
		close(leads)
	}
	options.NewCache, options.MapperProvider = newLeaderCache(ctx, leads), newMapper(ctx)
	mgr, err := ctrl.NewManager(cfg.Control, options)
	if err != nil {
		return fmt.Errorf("setting up: %w", err)
	}
	events, err := newEvents(cfg.Control, scheme)
	if err != nil {
		return err
	}
	defer events.shutdown()
	cfg.unreadable.reader, cfg.unreadable.events = mgr.GetAPIReader(), events.recorder("manager")
	if err := addAll(mgr, cfg, runner, events); err != nil {
		return err
	}
	if elects {
		if err := mgr.Add(leases); err != nil {
			return err
		}
	}
	if err := mgr.Add(pages.following(mgr, read, leads)); err != nil {
		return err
	}
	if err := mgr.Start(ctx); err != nil {
		return fmt.Errorf("running: %w", err)
	}
	return nil
}

// prepare checks that the control cluster serves the kinds of the APIs, and returns their scheme.
func prepare(ctx context.Context, cfg Config) (*runtime.Scheme, error) {
	scheme := Scheme()
	needed := kinds
	if !cfg.has(APIMCM) {
		needed = []string{"machineclasses"}
	}
	if err := awaitControl(ctx, cfg.Log, cfg.Control, needed...); err != nil {
		return nil, err
	}
	if !cfg.has(APICAPI) {
		return scheme, nil
	}
	version, err := discoverClusterAPI(ctx, cfg.Log, cfg.Control)
	if err != nil {
		return nil, err
	}
	core.AddToScheme(scheme, version)
	return scheme, nil
}

func managerOptions(cfg Config, scheme *runtime.Scheme, runner *tasks.Runner) (ctrl.Options, error) {
	timeout := shutdown
	options := ctrl.Options{
		Scheme: scheme,
		Logger: lazylog.New(cfg.Log),
		Cache:  cache.Options{DefaultTransform: cache.TransformStripManagedFields(), NewInformer: withLists(withLists(cfg.machines.NewInformer, cfg.unreadable.watching), consistent)},
		// Several managers may run in one process; their metrics are then added up. The controllers
		// of machines, sets, deployments and clusters set their concurrency themselves; for classes,
		// Secrets and nodes five workers are enough, and each costs the memory of its stack.
		// The priority queue of controller-runtime 0.24 can lock up when it is shut down
		// (kubernetes-sigs/controller-runtime#3538); leases would then not be released.
		Controller: config.Controller{
			MaxConcurrentReconciles: min(cfg.ConcurrentSyncs, 5), SkipNameValidation: ptr.To(true), UsePriorityQueue: ptr.To(false),
		},
		Metrics:                 metricsserver.Options{BindAddress: "0"},
		HealthProbeBindAddress:  "0",
		GracefulShutdownTimeout: &timeout,
		WebhookServer:           cfg.Webhooks.server(),
	}
	if cfg.Namespace != "" {
		options.Cache.DefaultNamespaces = map[string]cache.Config{cfg.Namespace: {}}
	}
	if cfg.ResyncPeriod > 0 {
		options.Cache.SyncPeriod = &cfg.ResyncPeriod
	}
	return options, cfg.Election.apply(&options, cfg, runner)
}

// addAll adds the controllers and everything else that runs.
func addAll(mgr ctrl.Manager, cfg Config, runner *tasks.Runner, events *events) error {
	joined, err := joinTarget(mgr, cfg)
	if err != nil {
		return err
	}
	runnables := append([]ctrlmanager.Runnable{runner}, cfg.Runnables...)
	if cfg.Orphans.Period > 0 && (cfg.runs(HalfMachines) || cfg.has(APICAPI)) {
		collector := newCollector(mgr, cfg, events)
		cfg.outOfRange = collector.Trigger
		runnables = append(runnables, collector)
	}
	if cfg.has(APIMCM) {
		cfg.outages, cfg.work = outage.NewReporter(), newWork(mgr)
		runnables = append(runnables, cfg.outages, newMetrics(mgr, cfg, joined))
	}
	all, err := controllers(mgr, cfg, joined, runner, events)
	if err != nil {
		return err
	}
	for _, c := range all {
		if err := c.SetupWithManager(mgr); err != nil {
			return err
		}
	}
	if err := addWebhooks(mgr, cfg); err != nil {
		return err
	}
	for _, runnable := range runnables {
		if err := mgr.Add(runnable); err != nil {
			return fmt.Errorf("adding a runnable: %w", err)
		}
	}
	return nil
}

func joinTarget(mgr ctrl.Manager, cfg Config) (*target.Cluster, error) {
	if cfg.Target == nil || !cfg.has(APIMCM) {
		return nil, nil
	}
	options := target.Options{
		Scheme: mgr.GetScheme(), Resync: cfg.ResyncPeriod,
		// What is not among the nodes is believed to be gone.
		NewInformer: withLists(toolscache.NewSharedIndexInformer, consistent),
	}
	if cfg.runs(HalfMachines) {
		// A drain takes what it does not find here for deleted.
		options.Kinds = []client.Object{
			&corev1.Pod{}, &corev1.PersistentVolume{}, &corev1.PersistentVolumeClaim{},
			&storagev1.VolumeAttachment{}, &policyv1.PodDisruptionBudget{},
		}
		options.Keep, options.Index = drain.StripPod, drain.AddIndexes
	}
	joined, err := target.New(cfg.Target, options)
	if err != nil {
		return nil, err
	}
	if err := mgr.Add(joined); err != nil {
		return nil, fmt.Errorf("adding the target cluster: %w", err)
	}
	return joined, nil
}
