package instrument

import (
	"errors"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millwright-dev/millwright/driver/status"
)

// metrics are the metrics of driver calls, with MCM's names and labels. A nil value
// records nothing.
type metrics struct {
	provider  string
	durations *prometheus.HistogramVec
	failures  *prometheus.CounterVec
}

func newMetrics(r prometheus.Registerer, provider string) *metrics {
	if r == nil {
		return nil
	}
	return &metrics{
		provider: provider,
		durations: register(r, prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "mcm_cloud_api_driver_request_duration_seconds",
			Help: "Time that successful driver calls took, in seconds.",
			// MCM's buckets are the default ones, which end at 10 s; VMs may take minutes.
			Buckets: append(prometheus.DefBuckets[:len(prometheus.DefBuckets):len(prometheus.DefBuckets)], 30, 60, 120, 300, 600),
		}, []string{"provider", "operation"})),
		failures: register(r, prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "mcm_cloud_api_driver_requests_failed_total",
			Help: "Number of driver calls that failed, by the number of the error code.",
		}, []string{"provider", "operation", "error_code"})),
	}
}

// register registers a collector, or returns that of an earlier decorator.
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

// observe records the duration of a successful call, or the code of a failed one, as MCM's
// drivers do.
func (m *metrics) observe(operation string, duration time.Duration, err error) {
	switch {
	case m == nil:
	case err == nil:
		m.durations.WithLabelValues(m.provider, operation).Observe(duration.Seconds())
	default:
		number := strconv.FormatUint(uint64(status.Code(err)), 10)
		m.failures.WithLabelValues(m.provider, operation, number).Inc()
	}
}
