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
	// queues begins the names of controller-runtime's metrics of work queues, and prefix comes
	// before that in MCM's.
	queues, prefix = "workqueue_", "mcm_"
	// queueLabel is the label that has the queue's name.
	queueLabel = "name"
)

// Handler serves what a gatherer gathers, with the metrics of work queues as MCM has them.
func Handler(from prometheus.Gatherer) http.Handler {
	return promhttp.HandlerFor(Gatherer(from), promhttp.HandlerOpts{ErrorHandling: promhttp.HTTPErrorOnError})
}

// Gatherer gathers what another does, with the metrics of work queues as MCM has them, whose only
// label is the name of the queue. controller-runtime does not let their names be chosen.
func Gatherer(from prometheus.Gatherer) prometheus.Gatherer {
	return prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		families, err := from.Gather()
		for i, family := range families {
			if strings.HasPrefix(family.GetName(), queues) {
				families[i] = ofQueues(family)
			}
		}
		// A metric without series would make the whole answer fail.
		families = slices.DeleteFunc(families, func(family *dto.MetricFamily) bool { return len(family.Metric) == 0 })
		slices.SortFunc(families, func(a, b *dto.MetricFamily) int { return cmp.Compare(a.GetName(), b.GetName()) })
		return families, err
	})
}

// ofQueues is a metric of controller-runtime's work queues as MCM has it: the priorities of a queue
// are added up.
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
			one.Gauge = &dto.Gauge{Value: &value} // it may be added to
		}
		seen[queue.GetValue()] = one
		ours.Metric = append(ours.Metric, one)
	}
	return ours
}

// add adds up gauges. No other metric of a queue is split by priority.
func add(to, more *dto.Metric) {
	if to.Gauge != nil && more.Gauge != nil {
		*to.Gauge.Value += more.Gauge.GetValue()
	}
}
