package safety

import "github.com/prometheus/client_golang/prometheus"

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
		registerer.MustRegister(m.orphans, m.removed)
	}
	return m
}

func (m *metrics) present(orphans int) { m.orphans.Set(float64(orphans)) }
