// Package manager runs the controllers. It contains the only list of them, their shared caches, leader
// election, and the pages that are served over HTTP.
package manager

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
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
	"github.com/millwright-dev/millwright/internal/controllers/capi/core"
	"github.com/millwright-dev/millwright/internal/controllers/nodecertificate"
	"github.com/millwright-dev/millwright/internal/lifecycle/drain"
	"github.com/millwright-dev/millwright/internal/lifecycle/nodes"
	"github.com/millwright-dev/millwright/internal/lifecycle/outage"
	"github.com/millwright-dev/millwright/internal/lifecycle/scarcity/capacity"
	"github.com/millwright-dev/millwright/internal/manager/lazylog"
	"github.com/millwright-dev/millwright/internal/observe/metrics"
	"github.com/millwright-dev/millwright/internal/reconcile/fieldindex"
	"github.com/millwright-dev/millwright/internal/reconcile/relist"
	"github.com/millwright-dev/millwright/internal/reconcile/target"
	"github.com/millwright-dev/millwright/internal/reconcile/tasks"
)

// shutdown is how long controllers and tasks may take to terminate.
const shutdown = 30 * time.Second

// linger is how long a manager with a Seed caches what only drains read after the last drain. A rollout should not list all
// Pods for each Machine.
const linger = 5 * drain.UseInterval

// Scheme returns a scheme with the kinds of Kubernetes and of Millwright.
func Scheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	utilruntime.Must(clientgoscheme.AddToScheme(scheme))
	utilruntime.Must(v1alpha1.AddToScheme(scheme))
	utilruntime.Must(vmv1alpha1.AddToScheme(scheme))
	utilruntime.Must(infrav1.AddToScheme(scheme))
	return scheme
}

// assembly is a manager under construction.
type assembly struct {
	Config
	mgr    ctrl.Manager
	runner *tasks.Runner
	// fail stops the manager with an error.
	fail   context.CancelCauseFunc
	events *events
	// joined is the target cluster, or nil if there is none.
	joined *target.Cluster
	// machines finds Machines in the cache.
	machines *fieldindex.Informers
	// unreadable reports objects that the cache cannot decode.
	unreadable *unreadable
	// olderKinds are the legacy class kinds that the control cluster serves.
	olderKinds []string
	// lacksSelector is set if the CRDs have no status.selector.
	lacksSelector bool
	// outOfRange is called when a driver begins to return OutOfRange because it found several instances of a
	// machine. It is nil without a collector of orphans.
	outOfRange func()
	// outages reports whether timeouts are frozen. It is nil without APIMCM.
	outages *outage.Reporter
	// work measures the work on Machines. It is nil without APIMCM.
	work *metrics.Work
	// capacity is the known capacity of classes. It is nil without the Machine controller.
	capacity *capacity.Memory
}

// Run runs a manager until ctx is canceled or the manager fails.
func Run(ctx context.Context, cfg Config) error {
	pages, stop, err := serve(ctx, cfg.Pages)
	if err != nil {
		return err
	}
	defer stop()
	if cfg.Progress != nil {
		pages.progress = cfg.Progress
	}
	err = run(ctx, cfg, pages)
	if ctx.Err() != nil && !errors.Is(err, context.DeadlineExceeded) {
		return nil // components that were starting fail during the shutdown
	}
	return err
}

func run(ctx context.Context, cfg Config, pages *serving) error {
	cfg.Control, cfg.Target = relist.Config(cfg.Control), relist.Config(cfg.Target)
	a, scheme, err := newAssembly(ctx, cfg)
	if err != nil {
		return err
	}
	ctx, a.fail = context.WithCancelCause(ctx)
	defer a.fail(nil)
	options, err := a.options(scheme)
	if err != nil {
		return err
	}
	if a.events, err = a.newEvents(scheme); err != nil {
		return err
	}
	defer a.events.shutdown()
	read, leads := make(chan struct{}), make(chan struct{})
	leases, elects := options.LeaderElectionResourceLockInterface.(*lock)
	if elects {
		read, leads = leases.seen, leases.won
		// The clients of the leases and of events exist already. They are not fenced: the leases could not be renewed or
		// released, and events only report what was done.
		cfg.Control, cfg.Target = leases.fence(cfg.Control), leases.fence(cfg.Target)
		a.Config, a.runner.Suspended = cfg, leases.expired
	} else {
		close(read)
		close(leads)
	}
	if cfg.Seed == nil {
		options.NewCache, options.MapperProvider = newLeaderCache(ctx, leads), newMapper(ctx)
	} else {
		cfg.Seed.view(&options, cfg.Namespace, leads, a.panicked)
	}
	if a.mgr, err = ctrl.NewManager(cfg.Control, options); err != nil {
		return fmt.Errorf("setting up: %w", err)
	}
	if cfg.Seed != nil {
		a.mgr, a.runner.Panicked = &contained{Manager: a.mgr}, a.panicked
	}
	if cfg.Seed == nil {
		a.unreadable.reader, a.unreadable.events = a.mgr.GetAPIReader(), a.events.recorder("manager")
	}
	if err := a.addAll(); err != nil {
		return err
	}
	if elects {
		if err := a.mgr.Add(leases); err != nil {
			return err
		}
	}
	if err := a.mgr.Add(pages.following(a.mgr, read, leads)); err != nil {
		return err
	}
	return a.start(ctx)
}

// start runs the manager until ctx is done or it fails. Managers with a Seed have no running tasks when it returns.
func (a *assembly) start(ctx context.Context) error {
	err := a.mgr.Start(ctx)
	if containing, ok := a.mgr.(*contained); ok {
		a.fail(nil)
		containing.running.Wait()
	}
	if panicked, ok := errors.AsType[*PanicError](context.Cause(ctx)); ok {
		return panicked
	}
	if cause := context.Cause(ctx); errors.Is(cause, ErrRestored) {
		return cause
	}
	if err != nil {
		return fmt.Errorf("running: %w", err)
	}
	return nil
}

// newAssembly returns an assembly with what must be known of the control cluster first.
func newAssembly(ctx context.Context, cfg Config) (*assembly, *runtime.Scheme, error) {
	a := &assembly{Config: cfg, runner: tasks.New(cfg.ConcurrentSyncs)}
	if cfg.Seed != nil {
		a.machines, a.olderKinds, a.lacksSelector = cfg.Seed.machines, cfg.Seed.olderKinds, cfg.Seed.lacksSelector
		return a, cfg.Seed.scheme, nil
	}
	scheme, err := prepare(ctx, cfg)
	if err != nil {
		return nil, nil, err
	}
	a.machines = &fieldindex.Informers{}
	a.lacksSelector = cfg.runs(HalfSets) && lacksSelector(ctx, cfg)
	if cfg.runs(HalfMachines) {
		if a.olderKinds, err = servedKinds(ctx, cfg); err != nil {
			return nil, nil, err
		}
	}
	a.unreadable = &unreadable{log: cfg.Log.WithName("cache"), scheme: scheme, namespace: cfg.Namespace}
	return a, scheme, nil
}

// restored stops the manager because the control cluster was restored.
func (a *assembly) restored() { a.fail(ErrRestored) }

// panicked stops the manager because of a panic.
func (a *assembly) panicked(value any) { a.fail(newPanicError(value)) }

// newEvents starts sending events.
func (a *assembly) newEvents(scheme *runtime.Scheme) (*events, error) {
	if a.Seed == nil {
		return newEvents(a.Control, scheme)
	}
	clients, err := a.Seed.separate(a.Control)
	if err != nil {
		return nil, err
	}
	return newEventsOf(clients, scheme), nil
}

// prepare checks that the control cluster serves the kinds of the APIs, and returns the scheme.
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

func (a *assembly) options(scheme *runtime.Scheme) (ctrl.Options, error) {
	timeout := shutdown
	options := ctrl.Options{
		Scheme: scheme,
		Logger: lazylog.New(a.Log),
		Cache:  cache.Options{DefaultTransform: cache.TransformStripManagedFields(), NewInformer: informers(a.machines, a.unreadable, a.restored)},
		// Several managers may run in one process; their metrics are then added up. The controllers of machines,
		// sets, deployments and clusters set their own concurrency. For classes, Secrets and nodes, five workers
		// are enough, and each worker costs the memory of its stack. The priority queue of controller-runtime
		// 0.24 can deadlock when it is shut down (kubernetes-sigs/controller-runtime#3538), and the leases would
		// then not be released.
		Controller: config.Controller{
			MaxConcurrentReconciles: min(a.ConcurrentSyncs, 5), SkipNameValidation: ptr.To(true), UsePriorityQueue: ptr.To(false),
		},
		Metrics:                 metricsserver.Options{BindAddress: "0"},
		HealthProbeBindAddress:  "0",
		GracefulShutdownTimeout: &timeout,
		WebhookServer:           a.Webhooks.server(),
	}
	if a.Namespace != "" {
		options.Cache.DefaultNamespaces = map[string]cache.Config{a.Namespace: {}}
	}
	if a.ResyncPeriod > 0 {
		options.Cache.SyncPeriod = &a.ResyncPeriod
	}
	return options, a.Election.apply(&options, a.Config, a.runner)
}

// addAll adds the controllers and everything else that runs.
func (a *assembly) addAll() error {
	if err := a.joinTarget(); err != nil {
		return err
	}
	runnables := append([]ctrlmanager.Runnable{a.runner}, a.Runnables...)
	if a.Orphans.Period > 0 && (a.runs(HalfMachines) || a.has(APICAPI)) {
		collector := a.newCollector()
		a.outOfRange = collector.Trigger
		runnables = append(runnables, collector)
	}
	if a.has(APIMCM) {
		a.outages, a.work = outage.NewReporter(), a.newWork()
		runnables = append(runnables, a.outages, a.newMetrics())
	}
	all, err := a.controllers()
	if err != nil {
		return err
	}
	for _, c := range all {
		if err := c.SetupWithManager(a.mgr); err != nil {
			return err
		}
	}
	if err := a.addWebhooks(); err != nil {
		return err
	}
	for _, runnable := range runnables {
		if err := a.mgr.Add(runnable); err != nil {
			return fmt.Errorf("adding a runnable: %w", err)
		}
	}
	return nil
}

// stripTarget removes from objects of the target cluster what no controller needs.
func stripTarget(object any) (any, error) {
	return drain.StripPod(nodecertificate.Strip(nodes.Strip(object)))
}

// joinTarget adds the target cluster, if there is one.
func (a *assembly) joinTarget() error {
	if a.Target == nil || !a.has(APIMCM) {
		return nil
	}
	options := target.Options{
		Scheme: a.mgr.GetScheme(), Resync: a.ResyncPeriod,
		// Nodes that are missing in the cache are considered gone.
		NewInformer: withLists(toolscache.NewSharedIndexInformer, consistent),
	}
	if a.runs(HalfMachines) {
		// A drain considers objects that are missing in the cache as deleted.
		options.Kinds = []client.Object{
			&corev1.Pod{}, &corev1.PersistentVolume{}, &corev1.PersistentVolumeClaim{},
			&storagev1.VolumeAttachment{}, &policyv1.PodDisruptionBudget{},
		}
		options.Keep, options.Index = stripTarget, drain.AddIndexes
	}
	// The caches of many clusters would be most of the memory of the process. A single cluster may be large, and listing all
	// its Pods for each drain would cost more than to watch them.
	if a.Seed != nil {
		options.Linger = linger
	}
	joined, err := target.New(a.Target, options)
	if err != nil {
		return err
	}
	if err := a.mgr.Add(joined); err != nil {
		return fmt.Errorf("adding the target cluster: %w", err)
	}
	a.joined = joined
	return nil
}
