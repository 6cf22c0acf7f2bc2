package manager

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/capi/owners"
	"github.com/millwright-dev/millwright/internal/lifecycle/drain"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
	"github.com/millwright-dev/millwright/internal/lifecycle/orphans"
	"github.com/millwright-dev/millwright/internal/observe/metrics"
	"github.com/millwright-dev/millwright/internal/reconcile/fieldindex"
	"github.com/millwright-dev/millwright/internal/reconcile/tasks"
)

// newDrainer returns the drainer of the target's nodes.
func (a *assembly) newDrainer(waker *tasks.Waker) (*drain.Drainer, error) {
	clients, err := kubernetes.NewForConfig(a.Target)
	if err != nil {
		return nil, fmt.Errorf("target cluster: %w", err)
	}
	volumes := instance.NewVolumes(instance.VolumesOptions{
		Drivers: a.Drivers, Run: a.runner.Go, Wake: waker.Wake,
		Class: func(ctx context.Context, machine instance.Key) (*v1alpha1.MachineClass, error) {
			return classOf(ctx, a.mgr.GetClient(), machine)
		},
	})
	options := drain.Options{
		Client: a.joined.Client(), Evictor: drain.NewEvictor(clients.CoreV1().RESTClient()),
		Run: a.runner.Go, Wake: waker.Wake, Clock: clock.RealClock{},
		Strategy: a.Drain.Strategy, DetachTimeout: a.Drain.DetachTimeout, ReattachTimeout: a.Drain.ReattachTimeout,
		Identify: volumes.Identify,
	}
	if a.Seed != nil {
		options.Use = a.joined.Use // see joinTarget
	}
	return drain.New(options), nil
}

// classOf returns the MachineClass of a Machine, or nil if it has none or one of a legacy kind.
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

// newCollector returns the collector of orphaned VMs. It knows both APIs even if the manager serves only one,
// because another manager with the same driver may serve the other.
func (a *assembly) newCollector() *orphans.Collector {
	machines := orphans.Machines{
		Live: a.mgr.GetAPIReader(), Mapper: a.mgr.GetRESTMapper(), Namespace: a.Namespace,
		Secret: func(ctx context.Context, class *v1alpha1.MachineClass) (*corev1.Secret, string, error) {
			// The VMs of a class of another driver cannot be listed.
			if sentence := a.Drivers.Refusal(class); sentence != "" {
				return nil, sentence, nil
			}
			return fieldindex.MergedSecret(ctx, a.mgr.GetClient(), class)
		},
	}
	if a.has(APIMCM) {
		machines.Cache = a.mgr.GetClient()
	}
	infrastructure := owners.MillwrightMachines{
		Live: a.mgr.GetAPIReader(), Mapper: a.mgr.GetRESTMapper(), Namespace: a.Namespace, Drivers: a.Drivers, WatchFilter: a.ClusterAPI.WatchFilter,
	}
	if a.has(APICAPI) {
		infrastructure.Cache = a.mgr.GetClient()
	}
	return orphans.New(orphans.Options{
		APIs: []orphans.API{machines, infrastructure}, Driver: a.Drivers, Mode: a.Orphans.Mode, Period: a.Orphans.Period,
		Events: a.events.recorder("orphan-collector"), Registerer: a.registry(), Log: a.Log.WithName("orphans"),
	})
}

// newMetrics returns the metrics of Machines, sets and deployments. Each half exports its own metrics, as in
// MCM.
func (a *assembly) newMetrics() *metrics.Collector {
	return metrics.New(metrics.Options{
		Reader: a.mgr.GetClient(), Informers: a.mgr.GetCache(), NoMachines: !a.runs(HalfMachines), NoSets: !a.runs(HalfSets), Clock: clock.RealClock{},
		Registerer: a.registry(), Work: a.work,
		// Before the first pass, only the state of the target's cache is known.
		Frozen: func() bool { return a.outages.Frozen() || a.joined != nil && !a.joined.Ready() },
	})
}

// newWork returns the metrics of the duration of work on Machines.
func (a *assembly) newWork() *metrics.Work {
	return metrics.NewWork(metrics.Options{Reader: a.mgr.GetClient(), Clock: clock.RealClock{}, Registerer: a.registry()})
}
