package metrics

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
	"github.com/millwright-dev/millwright/internal/lifecycle/drain"
)

// Work measures operations on Machines whose durations their objects do not show. It decorates
// drivers and drainers. Create one with NewWork.
type Work struct {
	reader client.Reader
	clock  clock.PassiveClock
	pools  *pools

	create, initialize, drain, remove *prometheus.GaugeVec
}

// NewWork returns a Work with the Reader, the Clock and the Registerer of the options. Several
// managers in one process share the metrics.
func NewWork(options Options) *Work {
	vector := func(name, help string, labels []string) *prometheus.GaugeVec {
		return shared(options.Registerer, prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels))
	}
	w := &Work{
		reader: options.Reader, clock: options.Clock,
		create: vector("mcm_machine_create_duration_seconds",
			"Seconds from creation of the machine until the driver had created its instance, for the last one created.", perPool),
		initialize: vector("mcm_machine_initialize_duration_seconds",
			"Duration of the last initialization of an instance, in seconds.", perPool),
		drain: vector("mcm_machine_drain_duration_seconds",
			"Duration of the last drain of a node, in seconds.", perPool[:2]),
		remove: vector("mcm_machine_delete_duration_seconds",
			"Seconds from deletion of the machine until the driver had deleted its instance, for the last one deleted.", perPool),
	}
	w.pools = newPools(w.create, w.initialize, w.drain, w.remove)
	return w
}

// record exports a duration of a Machine. Machines that do not name their deployment are ignored.
func (w *Work) record(vector *prometheus.GaugeVec, machine *v1alpha1.Machine, class *v1alpha1.MachineClass, took time.Duration) {
	if machine == nil {
		return
	}
	values, ok := labels(machine, class)
	if !ok {
		return
	}
	if vector == w.drain {
		values = values[:2]
	}
	w.pools.record(values, func() { vector.WithLabelValues(values...).Set(took.Seconds()) })
}

// shared registers a metric. If it is already registered, shared returns the existing one.
func shared(registerer prometheus.Registerer, metric *prometheus.GaugeVec) *prometheus.GaugeVec {
	err := registerer.Register(metric)
	if already, ok := errors.AsType[prometheus.AlreadyRegisteredError](err); ok {
		if existing, ok := already.ExistingCollector.(*prometheus.GaugeVec); ok {
			return existing
		}
	}
	if err != nil {
		panic(err) // the name belongs to a different metric
	}
	return metric
}

// Driver returns a driver that measures creations, initializations and deletions.
func (w *Work) Driver(d driver.Driver) driver.Driver { return &timedDriver{Driver: d, work: w} }

type timedDriver struct {
	driver.Driver
	work *Work
}

// Unwrap returns the measured driver, for driver.As.
func (d *timedDriver) Unwrap() driver.Driver { return d.Driver }

// CreateMachine implements driver.Driver.
func (d *timedDriver) CreateMachine(ctx context.Context, req *driver.CreateMachineRequest) (*driver.CreateMachineResponse, error) {
	resp, err := d.Driver.CreateMachine(ctx, req)
	if err == nil && req.Machine != nil {
		d.work.record(d.work.create, req.Machine, req.MachineClass, d.work.clock.Since(req.Machine.CreationTimestamp.Time))
	}
	return resp, err
}

// DeleteMachine implements driver.Driver.
func (d *timedDriver) DeleteMachine(ctx context.Context, req *driver.DeleteMachineRequest) (*driver.DeleteMachineResponse, error) {
	resp, err := d.Driver.DeleteMachine(ctx, req)
	if err == nil && req.Machine != nil && !req.Machine.DeletionTimestamp.IsZero() {
		d.work.record(d.work.remove, req.Machine, req.MachineClass, d.work.clock.Since(req.Machine.DeletionTimestamp.Time))
	}
	return resp, err
}

// InitializeMachine implements driver.Initializer.
func (d *timedDriver) InitializeMachine(ctx context.Context, req *driver.InitializeMachineRequest) (*driver.InitializeMachineResponse, error) {
	inner, ok := driver.As[driver.Initializer](d.Driver)
	if !ok {
		return nil, status.Error(codes.Unimplemented, "the driver does not implement InitializeMachine")
	}
	begin := d.work.clock.Now()
	resp, err := inner.InitializeMachine(ctx, req)
	if err == nil {
		d.work.record(d.work.initialize, req.Machine, req.MachineClass, d.work.clock.Since(begin))
	}
	return resp, err
}

// Drainer returns a drainer that measures the drains of d.
func (w *Work) Drainer(d drain.Interface) drain.Interface {
	return &timedDrainer{Interface: d, work: w, drains: map[types.NamespacedName]timedDrain{}}
}

type timedDrainer struct {
	drain.Interface
	work   *Work
	mu     sync.Mutex
	drains map[types.NamespacedName]timedDrain
}

// timedDrain is a drain in progress. A drain takes many passes, and passes continue after it is
// complete.
type timedDrain struct {
	since    time.Time
	reported bool
}

// Drain implements drain.Interface.
func (d *timedDrainer) Drain(ctx context.Context, req drain.Request) (drain.Report, error) {
	report, err := d.Interface.Drain(ctx, req)
	if err == nil && !report.NodeGone {
		if took, completed := d.observe(req, report.Done); completed {
			d.work.drained(ctx, req.Machine, took)
		}
	}
	return report, err
}

// observe reports whether this pass completes the drain, and how long the drain took. The duration
// is zero if the first pass completes it: the node was already empty, or an earlier process drained
// it.
func (d *timedDrainer) observe(req drain.Request, done bool) (took time.Duration, completed bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := d.work.clock.Now()
	known, seen := d.drains[req.Machine]
	if !seen {
		known.since = req.Since
		if done {
			known.since = now
		}
	}
	completed = done && !known.reported
	known.reported = known.reported || done
	d.drains[req.Machine] = known
	return now.Sub(known.since), completed
}

// Forget implements drain.Interface.
func (d *timedDrainer) Forget(machine types.NamespacedName) {
	d.mu.Lock()
	delete(d.drains, machine)
	d.mu.Unlock()
	d.Interface.Forget(machine)
}

// drained exports the duration of a drain. It does nothing if the Machine no longer exists.
func (w *Work) drained(ctx context.Context, key types.NamespacedName, took time.Duration) {
	machine := &v1alpha1.Machine{}
	if err := w.reader.Get(ctx, key, machine, client.UnsafeDisableDeepCopy); err != nil {
		return
	}
	w.record(w.drain, machine, nil, took)
}
