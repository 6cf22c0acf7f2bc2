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
	"github.com/millwright-dev/millwright/internal/reconcile/tasks"
)

type controller interface{ SetupWithManager(ctrl.Manager) error }

// controllers returns the controllers of each API that the manager serves. It is the only list of all
// controllers.
func (a *assembly) controllers() ([]controller, error) {
	var all []controller
	if a.has(APIMCM) {
		var err error
		if all, err = a.mcmControllers(); err != nil {
			return nil, err
		}
	}
	if a.has(APICAPI) {
		all = append(all, a.clusterAPIControllers()...)
	}
	return all, nil
}

// mcmControllers returns the controllers of APIMCM.
func (a *assembly) mcmControllers() ([]controller, error) {
	if err := fieldindex.Add(context.Background(), a.mgr.GetFieldIndexer()); err != nil {
		return nil, err
	}
	var all []controller
	writer := a.mgr.GetClient()
	if a.lacksSelector {
		writer = withoutSelector{writer}
	}
	sets := machineset.Options{
		Client: writer, Live: a.mgr.GetAPIReader(), Machines: a.machines,
		Events: a.events.recorder(componentMachineSet), SafetyEvents: a.events.recorder(componentMCM),
		Clock: clock.RealClock{}, Concurrency: a.ConcurrentSyncs,
		Overshoot: &a.Overshoot, EnforceMinReadySeconds: a.EnforceMinReadySeconds, OutageMemory: a.Fallback.Memory,
	}
	if a.runs(HalfMachines) {
		a.capacity = capacity.New(capacity.Options{After: a.Fallback.After, Memory: a.Fallback.Memory, Clock: clock.RealClock{}})
		machines, err := a.machineOptions()
		if err != nil {
			return nil, err
		}
		older := a.olderClasses()
		machines.Migration = older.Migration
		ofMachines := machine.New(machines)
		sets.Location, sets.Capacity = ofMachines.Location, a.capacity
		all = append(all, older, ofMachines,
			machineclass.New(a.mgr.GetClient(), a.events.recorder("machineclass-controller")),
			machineclass.NewForSecrets(a.mgr.GetClient(), a.events.recorder("machineclass-controller")))
		all = append(all, a.nodeControllers(machines)...)
	}
	if a.runs(HalfSets) {
		deployments := machinedeployment.Options{
			Client: writer, Live: a.mgr.GetAPIReader(), Machines: a.machines, Events: a.events.recorder(componentMCM),
			Clock: clock.RealClock{}, Concurrency: a.ConcurrentSyncs, ProtectNodes: a.ProtectNodes, InPlace: true,
		}
		if a.joined != nil {
			deployments.Target = a.joined
		}
		all = append(all, machineset.New(sets), machinedeployment.New(deployments))
	}
	return all, nil
}

// nodeControllers returns the controllers of the target's Nodes and their certificates.
func (a *assembly) nodeControllers(machines machine.Options) []controller {
	if a.joined == nil {
		return nil
	}
	all := []controller{unmanaged.New(unmanaged.Options{
		Machines: a.mgr.GetClient(), Target: a.joined, Events: machines.NodeEvents, Clock: clock.RealClock{}, Grace: a.CreationTimeout,
	})}
	if a.ApproveNodeCertificates {
		all = append(all, nodecertificate.New(nodecertificate.Options{
			Machines: a.mgr.GetClient(), Target: a.joined, Tokens: machines.Tokens, Reserved: a.ReservedNode,
			Events: a.events.recorder("node-certificate-controller"), Clock: clock.RealClock{},
		}))
	}
	return all
}

// machineOptions returns the options of the Machine controller, with its engine.
func (a *assembly) machineOptions() (machine.Options, error) {
	waker := &tasks.Waker{}
	engine := instance.New(a.work.Driver(a.Drivers), instance.Options{
		Run: a.runner.Go, Wake: waker.Wake, Clock: clock.RealClock{},
		Policy:      timeouts.Policy{ResourceExhausted: a.ResourceExhaustedRetry, CreationTimeout: a.CreationTimeout},
		CallTimeout: a.DriverTimeout, OutOfRange: a.outOfRange,
	})
	options := machine.Options{
		Client: a.mgr.GetClient(), Engine: engine, TaskCompletions: waker,
		Events: a.events.recorder("machine-controller"), Clock: clock.RealClock{}, Concurrency: a.ConcurrentSyncs,
		CreationTimeout: a.CreationTimeout, PreserveTimeout: a.Timeouts.Preserve, InPlaceUpdateTimeout: a.Timeouts.InPlaceUpdate, NodeConditions: a.NodeConditions, Health: a.Health,
		Drain:   machine.Drain{Timeout: a.Drain.Timeout, MaxEvictRetries: a.Drain.MaxEvictRetries},
		Drivers: a.Drivers, Outages: a.outages, RecordJoins: a.RecordJoins, Capacity: a.capacity,
	}
	if a.has(APICAPI) {
		options.OtherOwners = ownership.MillwrightMachines(a.mgr.GetClient())
	}
	if a.joined == nil {
		return options, nil
	}
	options.Target = a.joined
	options.Tokens = &bootstrap.Tokens{Target: a.joined.Client(), Installation: a.Namespace, Groups: a.BootstrapTokenGroups, Clock: clock.RealClock{}}
	drainer, err := a.newDrainer(waker)
	if err != nil {
		return options, err
	}
	options.Drain.Drainer = a.work.Drainer(drainer)
	options.NodeEvents, err = a.nodeEvents()
	return options, err
}

// nodeEvents returns the recorder of events about nodes, which stops with the manager.
func (a *assembly) nodeEvents() (record.EventRecorder, error) {
	recorder, stop, err := nodeevents.Start(apart(a.Target), a.mgr.GetScheme(), a.Log.WithName("events"))
	if err != nil {
		return nil, fmt.Errorf("target cluster: %w", err)
	}
	err = a.mgr.Add(ctrlmanager.RunnableFunc(func(ctx context.Context) error {
		<-ctx.Done()
		stop()
		return nil
	}))
	if err != nil {
		return nil, fmt.Errorf("adding the events of nodes: %w", err)
	}
	return recorder, nil
}
