// Package metrics exports the metrics of Machines, MachineSets and MachineDeployments under MCM's
// names and labels, and metrics of VirtualMachines.
//
// The state of objects is read from the caches at each scrape, so deleted objects have no series.
// Occurrences, such as joins, are counted when the caches report the change.
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
	// NoMachines leaves out the metrics of Machines, and NoSets those of MachineSets and
	// MachineDeployments, because another process exports them.
	NoMachines, NoSets bool
	// Informers watch Machines to count joins, which belong to the metrics of Machines, and deletions
	// of stale Machines, which belong to those of MachineSets. If nil, neither is counted.
	Informers cache.Informers
	Clock     clock.PassiveClock
	// Registerer is where the metrics are registered while the Collector runs.
	Registerer prometheus.Registerer
	// Frozen reports whether timeouts are suspended because an API server is unreachable. If nil, they
	// never are.
	Frozen func() bool
	// Work holds the metrics of operations on Machines. The Collector deletes their series when a pool
	// is deleted. It may be nil.
	Work *Work
}

// Collector exports metrics of the objects in a cache. Create one with New and add it to a manager.
type Collector struct {
	Options
	once *once
	// failures counts failed reads. The key is the MCM binary that exports the kind.
	failures map[string]*prometheus.CounterVec
}

// New returns a Collector.
func New(options Options) *Collector {
	c := &Collector{Options: options, once: newOnce(), failures: map[string]*prometheus.CounterVec{}}
	for _, binary := range []string{forMachines, forSets} {
		c.failures[binary] = prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "mcm_misc_scrape_failure_total", ConstLabels: prometheus.Labels{"binary": binary},
			Help: "Number of failed attempts to read the objects of a kind for a scrape.",
		}, []string{"kind"})
	}
	return c
}

// NeedLeaderElection returns true because only the leader fills its caches.
func (c *Collector) NeedLeaderElection() bool { return true }

// Start registers the metrics of Machines and those of MachineSets and MachineDeployments, and
// unregisters them when ctx is done. If several managers run in one process, the first one to
// register either part exports it.
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

// export registers collectors until ctx is done. It skips those that are already registered, and
// returns immediately if all are.
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

// within limits how long a scrape waits for a cache that is not filled yet.
const within = 5 * time.Second

// The MCM binaries that export Machines, and MachineSets and MachineDeployments, respectively.
const (
	forMachines = "machine-controller-manager-provider"
	forSets     = "machine-controller-manager"
)

// scraping starts the scrape of one part.
func scraping(ch chan<- prometheus.Metric) (context.Context, *scrape, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	return ctx, &scrape{ch: ch, seen: map[string]bool{}}, cancel
}

// drop deletes the series of pools that no longer exist.
func (c *Collector) drop(existing map[pool]bool) {
	c.once.pools.drop(existing)
	if c.Work != nil {
		c.Work.pools.drop(existing)
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

// read lists all objects of a kind and reports whether that succeeded. Failures are counted.
func (c *Collector) read(ctx context.Context, list client.ObjectList, binary, kind string) bool {
	failures := c.failures[binary].WithLabelValues(kind)
	if err := c.Reader.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
		failures.Inc()
		ctrl.Log.WithName("metrics").V(1).Info("Cannot read objects for a scrape", "kind", kind, "err", err.Error())
		return false
	}
	return true
}

// scrape collects the samples of one part. It ignores duplicates because a duplicate sample would
// make the whole scrape fail.
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
	if made, err := prometheus.NewConstMetric(metric, prometheus.GaugeValue, value, labels...); err == nil { // skip labels that are not valid UTF-8
		s.ch <- made
	}
}

func one(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}
