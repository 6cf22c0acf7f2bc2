// Package orphans removes instances that nobody owns, and does so only when it is certain.
//
// A Collector compares what the driver lists with the objects that own instances. What is
// left over is removed when it was left over twice, long enough apart, and when an error is
// not the likelier explanation: there is not too much of it, and what is not left over is
// listed, too. See orphans.go.
package orphans

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/millwright-dev/millwright/driver"
)

// Mode says what a Collector does about orphans.
type Mode string

const (
	// Delete removes them.
	Delete Mode = "delete"
	// Report only says which there are.
	Report Mode = "report"
	// Off looks for none.
	Off Mode = "off"
)

// Options configure a Collector.
type Options struct {
	// APIs are the APIs whose objects own instances: all that there are, also those for
	// which this manager makes none. Required.
	APIs []API
	// Driver lists and removes instances. Required.
	Driver driver.Driver
	// Mode says what is done about orphans. Empty means Delete.
	Mode Mode
	// Period is the time between two passes. Zero: there are none, as with Off.
	Period time.Duration
	// Grace is the least time between the first sighting of an orphan and its removal.
	// Passes without one in which it was owned, or not there, count. Zero means Period.
	Grace time.Duration
	// Limit is how many orphans of one class are believed. If there are more, a pass
	// removes none and asks; see AnnotationOrphans. Zero means DefaultLimit.
	Limit Limit
	// Events explains on the class what was found. Required.
	Events record.EventRecorder
	// Registerer gets the metrics. Nil: there are none.
	Registerer prometheus.Registerer
	// Clock tells the time; nil is the real one.
	Clock clock.WithTicker
	// Log gets one line for each removal and each class that was skipped.
	Log logr.Logger
}

// Limit is how many orphans of a class are believed.
type Limit struct {
	// Count is believed in any case.
	Count int
	// Percent of all instances of the class is believed beyond that.
	Percent int
}

// DefaultLimit believes in what happens when a few creations were cut short.
var DefaultLimit = Limit{Count: 3, Percent: 10}

// allows reports whether so many orphans among so many instances are believed.
func (l Limit) allows(orphans, instances int) bool {
	return orphans <= max(l.Count, instances*l.Percent/100)
}

// Collector removes orphans. Make one with New; a controller-runtime manager runs it while
// it leads, and after its caches are complete.
type Collector struct {
	Options
	trigger chan struct{}
	// seen is when each orphan was first seen, by class and provider ID.
	seen map[sighting]time.Time
	// said is what was last said of each class, so that it is said once.
	said   map[string]string
	counts *metrics
}

// sighting is an instance of a class.
type sighting struct{ class, providerID string }

// New makes a Collector.
func New(options Options) *Collector {
	if options.Grace == 0 {
		options.Grace = options.Period
	}
	if options.Limit == (Limit{}) {
		options.Limit = DefaultLimit
	}
	if options.Mode == "" {
		options.Mode = Delete
	}
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}
	return &Collector{
		Options: options, trigger: make(chan struct{}, 1), seen: map[sighting]time.Time{}, said: map[string]string{},
		counts: newMetrics(options.Registerer),
	}
}

// NeedLeaderElection tells the manager to run the Collector only while it leads.
func (c *Collector) NeedLeaderElection() bool { return true }

// Trigger asks for a pass soon: a driver has found several instances for one machine.
func (c *Collector) Trigger() {
	select {
	case c.trigger <- struct{}{}:
	default: // one is asked for already
	}
}

// Start makes passes until the context ends. The first comes after one period, since
// whoever was created before this process began may not be in its caches.
func (c *Collector) Start(ctx context.Context) error {
	if c.Mode == Off || c.Period <= 0 {
		return nil
	}
	ticker := c.Clock.NewTicker(c.Period)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C():
		case <-c.trigger:
		}
		if err := c.Collect(ctx); err != nil && ctx.Err() == nil {
			c.Log.Error(err, "looking for orphans")
		}
	}
}

// Collect makes one pass over the classes of all APIs. A class that fails does not keep it
// from the others.
func (c *Collector) Collect(ctx context.Context) error {
	var classes []Class
	for _, api := range c.APIs {
		of, err := api.Classes(ctx)
		if err != nil {
			return err
		}
		classes = append(classes, of...)
	}
	orphans := map[sighting]time.Time{}
	for _, class := range classes {
		found, err := c.collectClass(ctx, class)
		if err != nil {
			c.skip(class, err)
			// Nobody looked, so what is known stays known.
			for known, since := range c.seen {
				if known.class == class.Key {
					found = append(found, orphan{instance: instance{providerID: known.providerID}, since: since})
				}
			}
		}
		for _, o := range found {
			orphans[sighting{class.Key, o.providerID}] = o.since
		}
	}
	c.seen = orphans
	maps.DeleteFunc(c.said, func(key, _ string) bool {
		return !slices.ContainsFunc(classes, func(class Class) bool { return class.Key == key })
	})
	c.counts.present(len(orphans))
	return nil
}

// collectClass looks at the instances of one class, and returns the orphans that remain.
func (c *Collector) collectClass(ctx context.Context, class Class) ([]orphan, error) {
	if class.Skip != "" {
		return nil, &skipError{class.Skip}
	}
	instances, err := c.list(ctx, class)
	if err != nil {
		return nil, err
	}
	owners, err := c.owners(ctx, class, false)
	if err != nil {
		return nil, err
	}
	v := view{instances: instances, found: orphansAmong(instances, owners), allowed: allowance(class.Object)}
	v.strange = strange(class.Key, instances, owners)
	v.due = c.date(class, v.found)
	decided := decide(c.Mode, c.Limit, v)
	c.explain(class, v, decided)
	if !decided.remove {
		return v.found, nil
	}
	return c.removeAll(ctx, class, v), nil
}

// owners are those of all APIs that could own instances of a class.
func (c *Collector) owners(ctx context.Context, class Class, live bool) ([]Owner, error) {
	var all []Owner
	for _, api := range c.APIs {
		owners, err := api.Owners(ctx, live)
		switch {
		case errors.Is(err, ErrHidden) && driver.SeparatesAPIGroups(c.Driver) && !class.sharedWith(api):
		case errors.Is(err, ErrHidden):
			return nil, &skipError{"objects of another API may own some, and may not be read"}
		case err != nil:
			return nil, err
		}
		all = append(all, owners...)
	}
	return all, nil
}

// sharedWith reports whether objects of a api refer to the class.
func (c Class) sharedWith(api API) bool {
	return slices.Contains(c.Object.GetFinalizers(), api.Finalizer())
}

// date gives each orphan the time of its first sighting, and returns those that have been
// known for long enough.
func (c *Collector) date(class Class, found []orphan) []orphan {
	var due []orphan
	now := c.Clock.Now()
	for i := range found {
		since, known := c.seen[sighting{class.Key, found[i].providerID}]
		if !known {
			since = now
		}
		found[i].since = since
		if known && now.Sub(since) >= c.Grace {
			due = append(due, found[i])
		}
	}
	return due
}

// metrics of the Collector.
type metrics struct {
	orphans prometheus.Gauge
	removed prometheus.Counter
}

func newMetrics(registerer prometheus.Registerer) *metrics {
	m := &metrics{
		orphans: prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: "millwright", Name: "orphan_vms", Help: "VMs that nobody owned in the last pass and that were not removed.",
		}),
		removed: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: "millwright", Name: "orphan_vms_removed_total", Help: "VMs that were removed because nobody owned them.",
		}),
	}
	if registerer != nil {
		// Several collectors may live in one process; they share their metrics.
		m.orphans = registered(registerer, m.orphans)
		m.removed = registered(registerer, m.removed)
	}
	return m
}

// registered registers a metric, or finds the one that is there already.
func registered[T prometheus.Collector](registerer prometheus.Registerer, metric T) T {
	err := registerer.Register(metric)
	var there prometheus.AlreadyRegisteredError
	if errors.As(err, &there) {
		return there.ExistingCollector.(T)
	}
	if err != nil {
		panic(err) // another metric of that name: a mistake of ours
	}
	return metric
}

func (m *metrics) present(orphans int) { m.orphans.Set(float64(orphans)) }
