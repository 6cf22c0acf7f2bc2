package manager

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/capi/owners"
	"github.com/millwright-dev/millwright/internal/lifecycle/drain"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
	"github.com/millwright-dev/millwright/internal/lifecycle/orphans"
	"github.com/millwright-dev/millwright/internal/observe/metrics"
	"github.com/millwright-dev/millwright/internal/reconcile/fieldindex"
	"github.com/millwright-dev/millwright/internal/reconcile/target"
	"github.com/millwright-dev/millwright/internal/reconcile/tasks"
)

// Fallback is when Machines are made with another class than their first choice.
type Fallback struct {
	// After is for how long a class has to be without capacity until another one is taken. Zero is at once.
	After time.Duration
	// Memory is for how long a class counts as having no capacity after it was asked. Zero means
	// capacity.DefaultMemory.
	Memory time.Duration
}

// newDrainer returns the drainer of the target's nodes.
func newDrainer(mgr ctrl.Manager, cfg Config, joined *target.Cluster, runner *tasks.Runner, waker *tasks.Waker) (*drain.Drainer, error) {
	clients, err := kubernetes.NewForConfig(cfg.Target)
	if err != nil {
		return nil, fmt.Errorf("target cluster: %w", err)
	}
	volumes := instance.NewVolumes(instance.VolumesOptions{
		Drivers: cfg.Drivers, Run: runner.Go, Wake: waker.Wake,
		Class: func(ctx context.Context, machine instance.Key) (*v1alpha1.MachineClass, error) {
			return classOf(ctx, mgr.GetClient(), machine)
		},
	})
	return drain.New(drain.Options{
		Client: joined.Client(), Evictor: drain.NewEvictor(clients.CoreV1().RESTClient()),
		Run: runner.Go, Wake: waker.Wake, Clock: clock.RealClock{},
		Strategy: cfg.Drain.Strategy, DetachTimeout: cfg.Drain.DetachTimeout, ReattachTimeout: cfg.Drain.ReattachTimeout,
		Identify: volumes.Identify,
	}), nil
}

// classOf returns the MachineClass of a Machine; nil if it has none, or one of a legacy kind.
func classOf(ctx context.Context, from client.Reader, key client.ObjectKey) (*v1alpha1.MachineClass, error) {
	machine, class := &v1alpha1.Machine{}, &v1alpha1.MachineClass{}
	if err := from.Get(ctx, key, machine); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	if machine.Spec.Class.Kind != v1alpha1.MachineClassKind {
		return nil, nil
	}
	if err := from.Get(ctx, client.ObjectKey{Namespace: key.Namespace, Name: machine.Spec.Class.Name}, class); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	return class, nil
}

// newCollector returns the collector of orphaned VMs. It knows both APIs, also where the manager
// serves one: another manager with the same driver may serve the other.
func newCollector(mgr ctrl.Manager, cfg Config, events *events) *orphans.Collector {
	machines := orphans.Machines{
		Live: mgr.GetAPIReader(), Mapper: mgr.GetRESTMapper(), Namespace: cfg.Namespace,
		Secret: func(ctx context.Context, class *v1alpha1.MachineClass) (*corev1.Secret, string, error) {
			// The VMs of another driver's class cannot be listed.
			if sentence := cfg.Drivers.Refusal(class); sentence != "" {
				return nil, sentence, nil
			}
			return fieldindex.MergedSecret(ctx, mgr.GetClient(), class)
		},
	}
	if cfg.has(APIMCM) {
		machines.Cache = mgr.GetClient()
	}
	infrastructure := owners.MillwrightMachines{
		Live: mgr.GetAPIReader(), Mapper: mgr.GetRESTMapper(), Namespace: cfg.Namespace, Drivers: cfg.Drivers, WatchFilter: cfg.ClusterAPI.WatchFilter,
	}
	if cfg.has(APICAPI) {
		infrastructure.Cache = mgr.GetClient()
	}
	return orphans.New(orphans.Options{
		APIs: []orphans.API{machines, infrastructure}, Driver: cfg.Drivers, Mode: cfg.Orphans.Mode, Period: cfg.Orphans.Period,
		Events: events.recorder("orphan-collector"), Registerer: ctrlmetrics.Registry, Log: cfg.Log.WithName("orphans"),
	})
}

// newMetrics returns the metrics of Machines, sets and deployments. Each half exports its own, as in
// MCM.
func newMetrics(mgr ctrl.Manager, cfg Config, joined *target.Cluster) *metrics.Collector {
	return metrics.New(metrics.Options{
		Reader: mgr.GetClient(), Informers: mgr.GetCache(), NoMachines: !cfg.runs(HalfMachines), NoSets: !cfg.runs(HalfSets), Clock: clock.RealClock{},
		Registerer: ctrlmetrics.Registry, Work: cfg.work,
		// Before the first pass only the target's cache is known.
		Frozen: func() bool { return cfg.outages.Frozen() || joined != nil && !joined.Ready() },
	})
}

// newWork returns the metrics of the duration of work on Machines.
func newWork(mgr ctrl.Manager) *metrics.Work {
	return metrics.NewWork(metrics.Options{Reader: mgr.GetClient(), Clock: clock.RealClock{}, Registerer: ctrlmetrics.Registry})
}
