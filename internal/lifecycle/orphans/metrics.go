package orphans

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

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
