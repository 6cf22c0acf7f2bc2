package app

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	dto "github.com/prometheus/client_model/go"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

// serveDefaultMetrics has the manager serve, beside its own metrics, those that a provider registered with
// prometheus.DefaultRegisterer, as MCM does. The manager has those of Go and of the process itself.
func serveDefaultMetrics() error {
	prometheus.Unregister(collectors.NewGoCollector())
	prometheus.Unregister(collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return metrics.Registry.Register(gathered{prometheus.DefaultGatherer})
}

// gathered collects what a registry has.
type gathered struct{ prometheus.Gatherer }

// Describe describes nothing: what will be in the registry is not known.
func (gathered) Describe(chan<- *prometheus.Desc) {}

// Collect gathers the registry. A metric that cannot be gathered becomes an error of the scrape.
func (g gathered) Collect(to chan<- prometheus.Metric) {
	families, err := g.Gather()
	if err != nil {
		to <- prometheus.NewInvalidMetric(prometheus.NewInvalidDesc(err), err)
	}
	for _, family := range families {
		for _, metric := range family.Metric {
			to <- again(family, metric)
		}
	}
}

// series is a metric that was gathered.
type series struct {
	desc   *prometheus.Desc
	metric *dto.Metric
}

// again returns a metric of a family.
func again(family *dto.MetricFamily, metric *dto.Metric) series {
	labels := prometheus.Labels{}
	for _, label := range metric.Label {
		labels[label.GetName()] = label.GetValue()
	}
	return series{prometheus.NewDesc(family.GetName(), family.GetHelp(), nil, labels), metric}
}

// Desc implements prometheus.Metric.
func (s series) Desc() *prometheus.Desc { return s.desc }

// Write implements prometheus.Metric.
func (s series) Write(to *dto.Metric) error {
	to.Label = s.metric.Label
	to.Counter, to.Gauge, to.Summary = s.metric.Counter, s.metric.Gauge, s.metric.Summary
	to.Untyped, to.Histogram, to.TimestampMs = s.metric.Untyped, s.metric.Histogram, s.metric.TimestampMs
	return nil
}
