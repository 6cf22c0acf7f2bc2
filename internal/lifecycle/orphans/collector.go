// Package orphans removes instances that no object owns.
//
// A Collector compares the driver's list with the objects that own instances. It removes an orphan when it has
// found it twice, at least the grace period apart. It keeps orphans if an error is more likely, which it
// assumes if too many instances of a class are orphans or the driver lists none of the owned instances.
package orphans

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/registry"
	"github.com/millwright-dev/millwright/driver/status"
)

// Mode is what a Collector does with orphans.
type Mode string

const (
	// Delete removes them.
	Delete Mode = "delete"
	// Report only records events.
	Report Mode = "report"
	// Off disables the search for orphans.
	Off Mode = "off"
)

// Options configure a Collector.
type Options struct {
	// APIs are all API groups whose objects own instances, including those that this manager does not serve.
	// Required.
	APIs []API
	// Driver is required.
	Driver driver.Driver
	// Mode defaults to Delete.
	Mode Mode
	// Period is the time between two passes. If zero, the Collector is off.
	Period time.Duration
	// Grace is the minimum time between the discovery of an orphan and its removal. It starts again after a pass
	// in which the instance was not an orphan. Zero means Period.
	Grace time.Duration
	// Limit is how many orphans of a class one pass may remove; see AnnotationOrphans. Zero means DefaultLimit.
	Limit Limit
	// Events records the events for the classes. Required.
	Events record.EventRecorder
	// Registerer registers the metrics. Optional.
	Registerer prometheus.Registerer
	// Clock defaults to the real one.
	Clock clock.WithTicker
	Log   logr.Logger
}

// Limit is the larger of a number of orphans of a class, and a percentage of its instances.
type Limit struct{ Count, Percent int }

// DefaultLimit allows for a few interrupted creations.
var DefaultLimit = Limit{Count: 3, Percent: 10}

func (l Limit) allows(orphans, instances int) bool {
	return orphans <= max(l.Count, instances*l.Percent/100)
}

// Collector removes orphans. Create one with New. A controller-runtime manager runs it while it is the leader.
type Collector struct {
	Options
	trigger chan struct{}
	// seen is when each orphan was first found.
	seen map[sighting]time.Time
	// reported is the last event of each class, by its key.
	reported map[string]string
	// reportedUnnamed is the last event about unnamed VMs of each class, by its key.
	reportedUnnamed map[string]string
	orphans         prometheus.Gauge
	removed         prometheus.Counter
}

type sighting struct{ class, providerID string }

// New creates a Collector.
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
		Options: options, trigger: make(chan struct{}, 1), seen: map[sighting]time.Time{}, reported: map[string]string{}, reportedUnnamed: map[string]string{},
		orphans: registered(options.Registerer, prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: "millwright", Name: "orphan_vms", Help: "Number of orphaned VMs that were found in the last pass and not removed.",
		})),
		removed: registered(options.Registerer, prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: "millwright", Name: "orphan_vms_removed_total", Help: "Number of orphaned VMs that were removed.",
		})),
	}
}

// registered registers a metric. If another Collector in this process registered it, it returns that one.
func registered[T prometheus.Collector](registerer prometheus.Registerer, metric T) T {
	if registerer == nil {
		return metric
	}
	err := registerer.Register(metric)
	if existing, ok := errors.AsType[prometheus.AlreadyRegisteredError](err); ok {
		return existing.ExistingCollector.(T)
	}
	if err != nil {
		panic(err) // a different metric has the same name, which is a bug
	}
	return metric
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (c *Collector) NeedLeaderElection() bool { return true }

// Trigger requests a pass soon, for example because a driver found several instances of one machine.
func (c *Collector) Trigger() {
	select {
	case c.trigger <- struct{}{}:
	default:
	}
}

// Start runs passes until the context is canceled. The first pass runs after one period.
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

// Collect runs one pass over the classes of all APIs. Classes with errors are skipped.
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
			// The class was not checked, so its known orphans are kept.
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
	gone := func(key, _ string) bool {
		return !slices.ContainsFunc(classes, func(class Class) bool { return class.Key == key })
	}
	maps.DeleteFunc(c.reported, gone)
	maps.DeleteFunc(c.reportedUnnamed, gone)
	c.orphans.Set(float64(len(orphans)))
	return nil
}

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
	v.suspicion = suspicion(class.Key, instances, owners)
	v.due = c.date(class, v.found)
	decided := decide(c.Mode, c.Limit, v)
	c.explain(class, v, decided)
	if !decided.remove {
		return v.found, nil
	}
	return c.removeAll(ctx, class, v), nil
}

func (c *Collector) owners(ctx context.Context, class Class, live bool) ([]Owner, error) {
	var all []Owner
	for _, api := range c.APIs {
		owners, err := api.Owners(ctx, live)
		switch {
		case errors.Is(err, ErrHidden) && registry.SeparatesAPIGroups(c.Driver, class.Class) && !class.sharedWith(api):
		case errors.Is(err, ErrHidden):
			return nil, &skipError{"objects of another API group may own VMs, but reading them is forbidden"}
		case err != nil:
			return nil, err
		}
		all = append(all, owners...)
	}
	return all, nil
}

func (c Class) sharedWith(api API) bool {
	return slices.Contains(c.Object.GetFinalizers(), api.Finalizer())
}

// date sets when each orphan was first found, and returns those that have been known for at least the grace
// period.
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

// Reasons of events on a MachineClass.
const (
	reasonFound   = "OrphansFound"
	reasonRemoved = "OrphanRemoved"
	reasonKept    = "OrphansKept"
	reasonSkipped = "OrphansNotLookedFor"
	reasonUnnamed = "VMsWithoutName"
)

// callTimeout limits calls of the driver, because other classes are waiting.
const callTimeout = 5 * time.Minute

// skipError is the reason why a class was skipped, which is not a failure.
type skipError struct{ why string }

// Error implements error.
func (e *skipError) Error() string { return e.why }

func (c *Collector) list(ctx context.Context, class Class) ([]instance, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	response, err := c.Driver.ListMachines(ctx, &driver.ListMachinesRequest{MachineClass: class.Class, Secret: class.Secret})
	if status.Is(err, codes.Unimplemented) {
		return nil, &skipError{"the driver cannot list its VMs"}
	}
	if err != nil {
		return nil, fmt.Errorf("listing the VMs of class %s: %w", class.Class.Name, err)
	}
	instances, unnamed := split(class, response.MachineList)
	c.reportUnnamed(class, unnamed)
	return instances, nil
}

// removeAll removes the orphans that are due, after the API server confirms them. It returns the orphans that
// remain.
func (c *Collector) removeAll(ctx context.Context, class Class, v view) []orphan {
	confirmed, err := c.confirm(ctx, class, v)
	if err != nil {
		c.Log.Error(err, "keeping orphans", "class", class.Class.Name)
		return v.found
	}
	gone := map[string]bool{}
	for _, o := range confirmed {
		err := c.remove(ctx, class, o)
		if err != nil {
			c.Log.Error(err, "removing an orphan", "class", class.Class.Name, "providerID", o.providerID)
			continue
		}
		gone[o.providerID] = true
	}
	return slices.DeleteFunc(slices.Clone(v.found), func(o orphan) bool { return gone[o.providerID] })
}

// confirm returns the orphans that are due and are still orphans according to the API server.
func (c *Collector) confirm(ctx context.Context, class Class, v view) ([]orphan, error) {
	owners, err := c.owners(ctx, class, true)
	if err != nil {
		return nil, err
	}
	still := map[string]bool{}
	for _, o := range orphansAmong(v.instances, owners) {
		still[o.providerID] = true
	}
	return slices.DeleteFunc(slices.Clone(v.due), func(o orphan) bool { return !still[o.providerID] }), nil
}

// remove removes an orphan. It reads the owner of that name again, because removing other orphans may have
// taken a long time.
func (c *Collector) remove(ctx context.Context, class Class, o orphan) error {
	for _, api := range c.APIs {
		owner, err := api.Owner(ctx, o.key())
		switch {
		case errors.Is(err, ErrHidden): // checked before
		case err != nil:
			return err
		case owner != nil && (owner.Creating || slices.Contains(owner.ProviderIDs, o.providerID)):
			return fmt.Errorf("machine %s now owns it", o.machine)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	synthetic := &v1alpha1.Machine{
		ObjectMeta: metav1.ObjectMeta{Namespace: o.namespace, Name: o.machine},
		Spec:       v1alpha1.MachineSpec{ProviderID: o.providerID},
	}
	if api := driver.APIGroup(class.Class); api != "" {
		synthetic.Annotations = map[string]string{driver.AnnotationAPIGroup: api}
	}
	_, err := c.Driver.DeleteMachine(ctx, &driver.DeleteMachineRequest{Machine: synthetic, MachineClass: class.Class, Secret: class.Secret})
	if err != nil && !status.Is(err, codes.NotFound) {
		return fmt.Errorf("removing VM %s: %w", o.providerID, err)
	}
	c.removed.Inc()
	c.Log.Info("removed an orphan", "class", class.Class.Name, "providerID", o.providerID, "machine", o.machine, "because", o.why)
	c.Events.Eventf(class.Object, corev1.EventTypeWarning, reasonRemoved, "Removed orphaned VM %s: %s", o.providerID, o.why)
	return nil
}

func (c *Collector) explain(class Class, v view, decided decision) {
	switch {
	case len(v.found) == 0:
		delete(c.reported, class.Key)
	case decided.reason != "":
		c.report(class, reasonKept, "orphaned VMs are kept: "+decided.reason+". Orphaned VMs: "+enumerate(v.found))
	case !decided.remove:
		c.report(class, reasonFound, "found orphaned VMs, which are removed after "+c.Grace.String()+" unless a machine owns them: "+enumerate(v.found))
	}
}

func (c *Collector) skip(class Class, err error) {
	var skipped *skipError
	if !errors.As(err, &skipped) && !apierrors.IsNotFound(err) {
		c.Log.Error(err, "skipping a class", "class", class.Class.Name)
	}
	c.report(class, reasonSkipped, "cannot look for orphaned VMs: "+err.Error())
}

func (c *Collector) report(class Class, reason, message string) {
	if c.reported[class.Key] == reason+message {
		return
	}
	c.reported[class.Key] = reason + message
	c.Events.Event(class.Object, corev1.EventTypeWarning, reason, message)
}

func enumerate(orphans []orphan) string {
	const most = 5
	var texts []string
	for _, o := range orphans[:min(most, len(orphans))] {
		texts = append(texts, o.providerID+" ("+o.why+")")
	}
	if more := len(orphans) - most; more > 0 {
		texts = append(texts, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(texts, ", ")
}
