// Package metrics exports the metrics of Machines, MachineSets and MachineDeployments, under MCM's
// names and labels, and one of VirtualMachines.
//
// What objects show is read from the caches at each scrape, so that deleted objects have no series.
// What happens once is counted when the caches show it.
package metrics

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// Options configure a Collector.
type Options struct {
	// Reader reads objects from a cache.
	Reader client.Reader
	// NoMachines and NoSets leave out Machines, or sets and deployments: another process exports them.
	NoMachines, NoSets bool
	// Informers watch Machines; nil if nothing that happens once is counted.
	Informers cache.Informers
	Clock     clock.PassiveClock
	// Registerer has the metrics while the Collector runs.
	Registerer prometheus.Registerer
	// Frozen reports whether timeouts stand still since an API server is away; nil for never.
	Frozen func() bool
	// Work has metrics of pools, which end with the pools; nil if there is none.
	Work *Work
}

// Collector exports the objects of a cache. Make one with New, and add it to a manager.
type Collector struct {
	Options
	once     *once
	failures *prometheus.CounterVec
}

// New makes a Collector.
func New(options Options) *Collector {
	return &Collector{Options: options, once: newOnce(), failures: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "mcm_misc_scrape_failure_total",
		Help: "Number of times that the objects of a kind could not be read for a scrape.",
	}, []string{"binary", "kind"})}
}

// NeedLeaderElection is true: only the leader's caches are filled.
func (c *Collector) NeedLeaderElection() bool { return true }

// Start registers the metrics until ctx ends. Of several managers in one process, the first exports
// them.
func (c *Collector) Start(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	if c.Informers != nil {
		if err := c.watch(ctx); err != nil {
			return err
		}
	}
	var already prometheus.AlreadyRegisteredError
	if err := c.Registerer.Register(c); errors.As(err, &already) {
		return nil
	} else if err != nil {
		return fmt.Errorf("registering the metrics of machines: %w", err)
	}
	defer c.Registerer.Unregister(c)
	<-ctx.Done()
	return nil
}

// within is how long a scrape may wait for a cache that is not filled yet.
const within = 5 * time.Second

// The binaries of MCM that export Machines, and sets and deployments.
const (
	forMachines = "machine-controller-manager-provider"
	forSets     = "machine-controller-manager"
)

// Describe names all metrics.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range described {
		ch <- d
	}
	for _, metric := range append(c.once.all(), c.failures) {
		metric.Describe(ch)
	}
}

// Collect reads the caches.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	s := &scrape{ch: ch, seen: map[string]bool{}}
	if !c.NoMachines {
		s.add(frozen, one(c.Frozen != nil && c.Frozen()))
	}
	machines, sets, deployments := &v1alpha1.MachineList{}, &v1alpha1.MachineSetList{}, &v1alpha1.MachineDeploymentList{}
	known := c.read(ctx, machines, forMachines, "Machine")
	if known && !c.NoMachines {
		addAll(s, machineItems, machines.Items, machineRows)
	}
	if !c.NoSets && c.read(ctx, sets, forSets, "MachineSet") {
		addAll(s, setItems, sets.Items, setRows)
	}
	if c.read(ctx, deployments, forSets, "MachineDeployment") {
		if !c.NoSets {
			addAll(s, deploymentItems, deployments.Items, deploymentRows)
		}
		if known {
			c.drop(poolsOf(machines.Items, deployments.Items))
		}
	}
	for _, metric := range append(c.once.all(), c.failures) {
		metric.Collect(ch)
	}
}

// drop removes what is told of pools that are gone.
func (c *Collector) drop(there map[pool]bool) {
	c.once.pools.drop(there)
	if c.Work != nil {
		c.Work.pools.drop(there)
	}
}

func addAll[T any, P interface {
	*T
	metav1.Object
}](s *scrape, total *prometheus.Desc, items []T, rows func(P) []row) {
	s.add(total, float64(len(items)))
	for i := range items {
		object := P(&items[i])
		for _, row := range rows(object) {
			for _, sample := range row.samples {
				s.add(described[row.name], sample.value, append([]string{object.GetName(), object.GetNamespace()}, sample.labels...)...)
			}
		}
	}
}

// read reads all objects of a kind. Failures are counted.
func (c *Collector) read(ctx context.Context, list client.ObjectList, binary, kind string) bool {
	failures := c.failures.WithLabelValues(binary, kind)
	if err := c.Reader.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
		failures.Inc()
		ctrl.Log.WithName("metrics").V(1).Info("A scrape lacks a kind", "kind", kind, "err", err.Error())
		return false
	}
	return true
}

// scrape is one answer. A sample that is added twice would make the whole answer fail.
type scrape struct {
	ch   chan<- prometheus.Metric
	seen map[string]bool
}

func (s *scrape) add(metric *prometheus.Desc, value float64, labels ...string) {
	key := fmt.Sprintf("%p %s", metric, strings.Join(labels, "\x00"))
	if s.seen[key] {
		return
	}
	s.seen[key] = true
	if made, err := prometheus.NewConstMetric(metric, prometheus.GaugeValue, value, labels...); err == nil { // else a label is no text
		s.ch <- made
	}
}

func one(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}
