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
)

// Options configure a Collector.
type Options struct {
	// Reader reads objects from a cache.
	Reader client.Reader
	// NoMachines and NoSets leave out Machines, or sets and deployments: another process exports them.
	NoMachines, NoSets bool
	// Informers watch Machines; nil if nothing that happens once is counted. Joins are those of
	// Machines, and deletions of stale ones are those of sets.
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
	once *once
	// failures counts them by the binary of MCM that exports the kind.
	failures map[string]*prometheus.CounterVec
}

// New makes a Collector.
func New(options Options) *Collector {
	c := &Collector{Options: options, once: newOnce(), failures: map[string]*prometheus.CounterVec{}}
	for _, binary := range []string{forMachines, forSets} {
		c.failures[binary] = prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "mcm_misc_scrape_failure_total", ConstLabels: prometheus.Labels{"binary": binary},
			Help: "Number of times that the objects of a kind could not be read for a scrape.",
		}, []string{"kind"})
	}
	return c
}

// NeedLeaderElection is true: only the leader's caches are filled.
func (c *Collector) NeedLeaderElection() bool { return true }

// Start registers the metrics until ctx ends: those of Machines, and those of sets and deployments. Of
// several managers in one process, the first of each exports them.
func (c *Collector) Start(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	if c.Informers != nil {
		if err := c.watch(ctx); err != nil {
			return err
		}
	}
	if err := export(ctx, c.Registerer, c.parts()...); err != nil {
		return fmt.Errorf("registering the metrics of machines: %w", err)
	}
	return nil
}

// export registers collectors until ctx ends, but for those that are registered already. It returns at
// once if all are.
func export(ctx context.Context, registerer prometheus.Registerer, collectors ...prometheus.Collector) error {
	ours := 0
	for _, collector := range collectors {
		err := registerer.Register(collector)
		if _, already := errors.AsType[prometheus.AlreadyRegisteredError](err); already {
			continue
		}
		if err != nil {
			return err
		}
		defer registerer.Unregister(collector)
		ours++
	}
	if ours > 0 {
		<-ctx.Done()
	}
	return nil
}

// within is how long a scrape may wait for a cache that is not filled yet.
const within = 5 * time.Second

// The binaries of MCM that export Machines, and sets and deployments.
const (
	forMachines = "machine-controller-manager-provider"
	forSets     = "machine-controller-manager"
)

// scraping begins an answer.
func scraping(ch chan<- prometheus.Metric) (context.Context, *scrape, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	return ctx, &scrape{ch: ch, seen: map[string]bool{}}, cancel
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
	failures := c.failures[binary].WithLabelValues(kind)
	if err := c.Reader.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
		failures.Inc()
		ctrl.Log.WithName("metrics").V(1).Info("A scrape lacks a kind", "kind", kind, "err", err.Error())
		return false
	}
	return true
}

// scrape is the answer of one part. A sample that is added twice would make the whole answer fail.
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
