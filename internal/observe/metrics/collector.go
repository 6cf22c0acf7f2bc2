// Package metrics exports the metrics of Machines, MachineSets and MachineDeployments, under MCM's
// names and labels.
//
// What can be read off the objects is read from the caches at each scrape, so that what is
// gone has no series. What happens once is counted when the caches show it.
package metrics

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
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
	// Informers tell of changes of Machines. Nil: nothing that happens once is counted.
	Informers cache.Informers
	// Clock tells the time.
	Clock clock.PassiveClock
	// Registerer is where the metrics are registered as long as the Collector runs.
	Registerer prometheus.Registerer
	// Frozen reports whether Machines are left alone since an API server is away; nil:
	// never.
	Frozen func() bool
}

// Collector tells of the objects of a cache. Make one with New, and add it to a manager.
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

// NeedLeaderElection is true: one process counts what happens, and its cache alone is filled.
func (c *Collector) NeedLeaderElection() bool { return true }

// Start registers the metrics, and takes them back when ctx ends. Where several managers
// live in one process, the first of them has them.
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

// The binaries of MCM that tell of Machines, and of sets and deployments.
const (
	forMachines = "machine-controller-manager-provider"
	forSets     = "machine-controller-manager"
)

// Describe names all metrics.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range described {
		ch <- d
	}
	c.once.describe(ch)
	c.failures.Describe(ch)
}

// Collect reads the caches.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	s := &scrape{ch: ch, seen: map[string]bool{}}
	s.tell(frozen, one(c.Frozen != nil && c.Frozen()))

	machines := &v1alpha1.MachineList{}
	if c.read(ctx, machines, forMachines, "Machine") {
		s.tell(machineItems, float64(len(machines.Items)))
		for i := range machines.Items {
			s.machine(&machines.Items[i])
		}
	}
	sets := &v1alpha1.MachineSetList{}
	if c.read(ctx, sets, forSets, "MachineSet") {
		s.tell(setItems, float64(len(sets.Items)))
		for i := range sets.Items {
			s.set(&sets.Items[i])
		}
	}
	deployments := &v1alpha1.MachineDeploymentList{}
	if c.read(ctx, deployments, forSets, "MachineDeployment") {
		s.tell(deploymentItems, float64(len(deployments.Items)))
		for i := range deployments.Items {
			s.deployment(&deployments.Items[i])
		}
	}
	c.once.collect(ch)
	c.failures.Collect(ch)
}

// read reads all objects of a kind. What cannot be read is counted and left out.
func (c *Collector) read(ctx context.Context, list client.ObjectList, binary, kind string) bool {
	failures := c.failures.WithLabelValues(binary, kind)
	if err := c.Reader.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
		failures.Inc()
		ctrl.Log.WithName("metrics").V(1).Info("A scrape lacks a kind", "kind", kind, "err", err.Error())
		return false
	}
	return true
}

// scrape is one answer. It tells nothing twice: that would make the whole answer fail.
type scrape struct {
	ch   chan<- prometheus.Metric
	seen map[string]bool
}

func (s *scrape) tell(what *prometheus.Desc, value float64, labels ...string) {
	key := fmt.Sprintf("%p %s", what, strings.Join(labels, "\x00"))
	if s.seen[key] {
		return
	}
	s.seen[key] = true
	metric, err := prometheus.NewConstMetric(what, prometheus.GaugeValue, value, labels...)
	if err != nil {
		return // labels that are no text; the others are worth more
	}
	s.ch <- metric
}

// one is 1 for yes.
func one(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}
