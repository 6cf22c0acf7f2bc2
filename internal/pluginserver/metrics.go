package pluginserver

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the metrics of the server. A nil value records nothing.
type metrics struct {
	connections    *prometheus.GaugeVec
	ignoredResults *prometheus.CounterVec
}

func newMetrics(r prometheus.Registerer) *metrics {
	if r == nil {
		return nil
	}
	return &metrics{
		connections: register(r, prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "millwright_driver_connected",
			Help: "1 if the driver in another process is connected, and 0 if it was before.",
		}, []string{"provider"})),
		ignoredResults: register(r, prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "millwright_driver_ignored_results_total",
			Help: "Number of results of a driver in another process that no operation was waiting for.",
		}, []string{"provider"})),
	}
}

// register registers a collector, or returns the one of an earlier server.
func register[C prometheus.Collector](r prometheus.Registerer, collector C) C {
	err := r.Register(collector)
	if err == nil {
		return collector
	}
	if already, ok := errors.AsType[prometheus.AlreadyRegisteredError](err); ok {
		if existing, ok := already.ExistingCollector.(C); ok {
			return existing
		}
	}
	panic(err)
}

func (m *metrics) connected(kind string, is bool) {
	if m == nil {
		return
	}
	value := 0.0
	if is {
		value = 1
	}
	m.connections.WithLabelValues(kind).Set(value)
}

func (m *metrics) ignored(kind string) {
	if m != nil {
		m.ignoredResults.WithLabelValues(kind).Inc()
	}
}
