package manager

import (
	"context"
	"fmt"

	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	ctrlmanager "sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/millwright-dev/millwright/internal/controllers/machine"
	"github.com/millwright-dev/millwright/internal/controllers/machine/nodeevents"
	"github.com/millwright-dev/millwright/internal/controllers/machine/unmanaged"
	"github.com/millwright-dev/millwright/internal/controllers/machineclass"
	"github.com/millwright-dev/millwright/internal/controllers/machinedeployment"
	"github.com/millwright-dev/millwright/internal/controllers/machineset"
	"github.com/millwright-dev/millwright/internal/controllers/nodecertificate"
	"github.com/millwright-dev/millwright/internal/lifecycle/bootstrap"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
	"github.com/millwright-dev/millwright/internal/lifecycle/ownership"
	"github.com/millwright-dev/millwright/internal/lifecycle/scarcity/capacity"
	"github.com/millwright-dev/millwright/internal/lifecycle/timeouts"
	"github.com/millwright-dev/millwright/internal/reconcile/fieldindex"
	"github.com/millwright-dev/millwright/internal/reconcile/target"
	"github.com/millwright-dev/millwright/internal/reconcile/tasks"
)

type controller interface{ SetupWithManager(ctrl.Manager) error }

// controllers is the only list of all controllers: those of each API that the manager serves. The
// target is nil if there is none.
func controllers(mgr ctrl.Manager, cfg Config, joined *target.Cluster, runner *tasks.Runner, events *events) ([]controller, error) {
	var all []controller
	if cfg.has(APIMCM) {
		var err error
		if all, err = mcmControllers(mgr, cfg, joined, runner, events); err != nil {
			return nil, err
		}
	}
	if cfg.has(APICAPI) {
		all = append(all, clusterAPIControllers(mgr, cfg, runner, events)...)
	}
	return all, nil
}

// mcmControllers are those of the API mcm.
func mcmControllers(mgr ctrl.Manager, cfg Config, joined *target.Cluster, runner *tasks.Runner, events *events) ([]controller, error) {
	if err := fieldindex.Add(context.Background(), mgr.GetFieldIndexer()); err != nil {
		return nil, err
	}
	var all []controller
	writer := mgr.GetClient()
	if cfg.lacksSelector {
		writer = withoutSelector{writer}
	}
	sets := machineset.Options{
		Client: writer, Live: mgr.GetAPIReader(), Machines: cfg.machines, Events: events.recorder("machineset-controller"),
		Clock: clock.RealClock{}, Concurrency: cfg.ConcurrentSyncs,
		Overshoot: &cfg.Overshoot, EnforceMinReadySeconds: cfg.EnforceMinReadySeconds, OutageMemory: cfg.Fallback.Memory,
	}
	if cfg.runs(HalfMachines) {
		cfg.capacity = capacity.New(capacity.Options{After: cfg.Fallback.After, Memory: cfg.Fallback.Memory, Clock: clock.RealClock{}})
		machines, err := machineOptions(mgr, cfg, joined, runner, events)
		if err != nil {
			return nil, err
		}
		older := olderClasses(mgr, cfg, events)
		machines.Migration = older.Migration
		ofMachines := machine.New(machines)
		sets.Location, sets.Capacity = ofMachines.Location, cfg.capacity
		all = append(all, older, ofMachines, machineclass.New(mgr.GetClient()), machineclass.NewForSecrets(mgr.GetClient()))
		all = append(all, nodeControllers(mgr, cfg, joined, machines.Tokens, events)...)
	}
	if cfg.runs(HalfSets) {
		deployments := machinedeployment.Options{
			Client: writer, Live: mgr.GetAPIReader(), Machines: cfg.machines, Events: events.recorder("machinedeployment-controller"),
			Clock: clock.RealClock{}, Concurrency: cfg.ConcurrentSyncs, ProtectNodes: cfg.ProtectNodes, InPlace: true,
		}
		if joined != nil {
			deployments.Target = joined
		}
		all = append(all, machineset.New(sets), machinedeployment.New(deployments))
	}
	return all, nil
}

// nodeControllers are those of the target's Nodes and of their certificates.
func nodeControllers(mgr ctrl.Manager, cfg Config, joined *target.Cluster, tokens *bootstrap.Tokens, events *events) []controller {
	if joined == nil {
		return nil
	}
	all := []controller{unmanaged.New(unmanaged.Options{
		Machines: mgr.GetClient(), Target: joined, Clock: clock.RealClock{}, Grace: cfg.CreationTimeout,
	})}
	if cfg.NodeCertificates.Approve {
		all = append(all, nodecertificate.New(nodecertificate.Options{
			Machines: mgr.GetClient(), Target: joined, Tokens: tokens, Reserved: cfg.NodeCertificates.Reserved,
			Events: events.recorder("node-certificate-controller"), Clock: clock.RealClock{},
		}))
	}
	return all
}

// machineOptions returns the options of the Machine controller, with its engine.
func machineOptions(mgr ctrl.Manager, cfg Config, joined *target.Cluster, runner *tasks.Runner, events *events) (machine.Options, error) {
	waker := &tasks.Waker{}
	engine := instance.New(cfg.work.Driver(cfg.Drivers), instance.Options{
		Run: runner.Go, Wake: waker.Wake, Clock: clock.RealClock{},
		Policy:     timeouts.Policy{ResourceExhausted: cfg.ResourceExhaustedRetry, CreationTimeout: cfg.CreationTimeout},
		OutOfRange: cfg.outOfRange,
	})
	options := machine.Options{
		Client: mgr.GetClient(), Engine: engine, TaskEnds: waker,
		Events: events.recorder("machine-controller"), Clock: clock.RealClock{}, Concurrency: cfg.ConcurrentSyncs,
		CreationTimeout: cfg.CreationTimeout, PreserveTimeout: cfg.Timeouts.Preserve, InPlaceUpdateTimeout: cfg.Timeouts.InPlaceUpdate, NodeConditions: cfg.NodeConditions, Health: cfg.Health,
		Drain:   machine.Drain{Timeout: cfg.Drain.Timeout, MaxEvictRetries: cfg.Drain.MaxEvictRetries},
		Drivers: cfg.Drivers, Outages: cfg.outages, RecordJoins: cfg.RecordJoins, Capacity: cfg.capacity,
	}
	if cfg.has(APICAPI) {
		options.OtherOwners = ownership.MillwrightMachines(mgr.GetClient())
	}
	if joined == nil {
		return options, nil
	}
	options.Target = joined
	options.Tokens = &bootstrap.Tokens{Target: joined.Client(), Installation: cfg.Namespace, Groups: cfg.BootstrapTokenGroups, Clock: clock.RealClock{}}
	drainer, err := newDrainer(mgr, cfg, joined, runner, waker)
	if err != nil {
		return options, err
	}
	options.Drain.Drainer = cfg.work.Drainer(drainer)
	options.NodeEvents, err = nodeEvents(mgr, cfg)
	return options, err
}

// nodeEvents returns the recorder of events about nodes, which ends with the manager.
func nodeEvents(mgr ctrl.Manager, cfg Config) (record.EventRecorder, error) {
	recorder, stop, err := nodeevents.Start(apart(cfg.Target), mgr.GetScheme(), cfg.Log.WithName("events"))
	if err != nil {
		return nil, fmt.Errorf("target cluster: %w", err)
	}
	err = mgr.Add(ctrlmanager.RunnableFunc(func(ctx context.Context) error {
		<-ctx.Done()
		stop()
		return nil
	}))
	if err != nil {
		return nil, fmt.Errorf("adding the events of nodes: %w", err)
	}
	return recorder, nil
}
