package instrument

import (
	"errors"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/driver/status"
)

// metrics are the metrics of driver calls, with MCM's names and labels. A nil pointer records nothing.
type metrics struct {
	provider string
	// durations and failures measure the driver's methods.
	durations *prometheus.HistogramVec
	failures  *prometheus.CounterVec
	// The other metrics measure requests to the provider. MCM's drivers count each request that they send, with its
	// service as a label. Here a call counts as one request, and its operation is the service.
	requests, failedRequests *prometheus.CounterVec
	requestDurations         *prometheus.HistogramVec
}

// buckets are MCM's buckets, which are the default ones, and additional ones above 10 s: VMs may take minutes.
var buckets = append(prometheus.DefBuckets[:len(prometheus.DefBuckets):len(prometheus.DefBuckets)], 30, 60, 120, 300, 600)

func newMetrics(r prometheus.Registerer, provider string) *metrics {
	if r == nil {
		return nil
	}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return register(r, prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels))
	}
	histogram := func(name, help string, labels ...string) *prometheus.HistogramVec {
		return register(r, prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels))
	}
	return &metrics{
		provider: provider,
		durations: histogram("mcm_cloud_api_driver_request_duration_seconds",
			"Time that successful driver calls took, in seconds.", "provider", "operation"),
		failures: counter("mcm_cloud_api_driver_requests_failed_total",
			"Number of driver calls that failed, by the number of the error code.", "provider", "operation", "error_code"),
		requests: counter("mcm_cloud_api_requests_total",
			"Number of requests to the provider; each driver call counts as one.", "provider", "service"),
		failedRequests: counter("mcm_cloud_api_requests_failed_total",
			"Number of requests to the provider that failed. NotFound does not count as a failure.", "provider", "service"),
		requestDurations: histogram("mcm_cloud_api_api_request_duration_seconds",
			"Time that successful requests to the provider took, in seconds.", "provider", "service"),
	}
}

// register registers a collector, or returns the collector of an earlier decorator.
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

// observe records the duration of a successful call, or the code of a failed one, as MCM's drivers do.
func (m *metrics) observe(c call, duration time.Duration, err error) {
	if m == nil {
		return
	}
	code := status.Code(err)
	if err == nil {
		m.durations.WithLabelValues(m.provider, c.operation).Observe(duration.Seconds())
	} else {
		m.failures.WithLabelValues(m.provider, c.operation, strconv.FormatUint(uint64(code), 10)).Inc()
	}
	if code == codes.Unimplemented {
		return // no request was sent
	}
	m.requests.WithLabelValues(m.provider, c.operation).Inc()
	if err == nil || c.expects(code) {
		m.requestDurations.WithLabelValues(m.provider, c.operation).Observe(duration.Seconds())
		return
	}
	m.failedRequests.WithLabelValues(m.provider, c.operation).Inc()
}
