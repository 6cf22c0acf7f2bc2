package metrics

import (
	"cmp"
	"net/http"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
)

const (
	// queues is the prefix of controller-runtime's work queue metrics. MCM's metrics have prefix
	// before it.
	queues, prefix = "workqueue_", "mcm_"
	// queueLabel is the label that contains the name of the queue.
	queueLabel = "name"
)

// Handler serves the metrics of a gatherer, with work queue metrics as MCM exports them.
func Handler(from prometheus.Gatherer) http.Handler {
	return promhttp.HandlerFor(Gatherer(from), promhttp.HandlerOpts{ErrorHandling: promhttp.HTTPErrorOnError})
}

// Gatherer wraps a gatherer and converts work queue metrics to those of MCM, whose only label is
// the name of the queue. controller-runtime does not allow other names.
func Gatherer(from prometheus.Gatherer) prometheus.Gatherer {
	return prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		families, err := from.Gather()
		for i, family := range families {
			if strings.HasPrefix(family.GetName(), queues) {
				families[i] = ofQueues(family)
			}
		}
		// A metric without series would make the whole scrape fail.
		families = slices.DeleteFunc(families, func(family *dto.MetricFamily) bool { return len(family.Metric) == 0 })
		slices.SortFunc(families, func(a, b *dto.MetricFamily) int { return cmp.Compare(a.GetName(), b.GetName()) })
		return families, err
	})
}

// ofQueues converts a work queue metric of controller-runtime to MCM's: it sums the priorities of
// each queue.
func ofQueues(family *dto.MetricFamily) *dto.MetricFamily {
	name := prefix + family.GetName()
	ours := &dto.MetricFamily{Name: &name, Help: family.Help, Type: family.Type, Unit: family.Unit}
	seen := map[string]*dto.Metric{}
	for _, metric := range family.Metric {
		label := slices.IndexFunc(metric.Label, func(l *dto.LabelPair) bool { return l.GetName() == queueLabel })
		if label < 0 {
			continue
		}
		queue := metric.Label[label]
		if first := seen[queue.GetValue()]; first != nil {
			add(first, metric)
			continue
		}
		one := &dto.Metric{
			Label: []*dto.LabelPair{queue}, TimestampMs: metric.TimestampMs,
			Counter: metric.Counter, Histogram: metric.Histogram, Untyped: metric.Untyped, Summary: metric.Summary,
		}
		if metric.Gauge != nil {
			value := metric.Gauge.GetValue()
			one.Gauge = &dto.Gauge{Value: &value} // a copy, because add may change it
		}
		seen[queue.GetValue()] = one
		ours.Metric = append(ours.Metric, one)
	}
	return ours
}

// add sums gauges. No other metric of a queue is split by priority.
func add(to, more *dto.Metric) {
	if to.Gauge != nil && more.Gauge != nil {
		*to.Gauge.Value += more.Gauge.GetValue()
	}
}
