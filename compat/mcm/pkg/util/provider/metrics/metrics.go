// Package metrics contains the metrics of calls that providers record themselves, at MCM's import path.
//
// They are registered where the manager serves its metrics. In a program with this package, the manager does not
// record them itself, so each call counts once.
package metrics

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/gardener/machine-controller-manager/internal/recorder"
)

var (
	// APIRequestCount counts requests to the provider, by provider and service.
	APIRequestCount = newCounter("requests_total",
		"Number of requests to the provider.", "provider", "service")
	// APIFailedRequestCount counts requests to the provider that failed, by provider and service.
	APIFailedRequestCount = newCounter("requests_failed_total",
		"Number of requests to the provider that failed.", "provider", "service")
	// APIRequestDuration is the duration of requests to the provider, in seconds, by provider and service.
	APIRequestDuration = newHistogram("api_request_duration_seconds",
		"Time that requests to the provider took, in seconds.", "provider", "service")
	// DriverAPIRequestDuration is the duration of driver calls, in seconds, by provider and operation.
	DriverAPIRequestDuration = newHistogram("driver_request_duration_seconds",
		"Time that successful driver calls took, in seconds.", "provider", "operation")
	// DriverFailedAPIRequests counts driver calls that failed, by provider, operation and the number of
	// the error code.
	DriverFailedAPIRequests = newCounter("driver_requests_failed_total",
		"Number of driver calls that failed, by the number of the error code.", "provider", "operation", "error_code")
)

// Parts of the metrics' names.
const (
	namespace = "mcm"
	subsystem = "cloud_api"
)

// buckets are MCM's buckets, which end at 10 s, and larger ones, because VMs may take minutes.
var buckets = append(slices.Clone(prometheus.DefBuckets), 30, 60, 120, 300, 600)

func init() { recorder.Provider = true }

func newCounter(name, help string, labels ...string) *prometheus.CounterVec {
	vec := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help}, labels)
	metrics.Registry.MustRegister(vec)
	return vec
}

func newHistogram(name, help string, labels ...string) *prometheus.HistogramVec {
	vec := prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help, Buckets: buckets}, labels)
	metrics.Registry.MustRegister(vec)
	return vec
}
