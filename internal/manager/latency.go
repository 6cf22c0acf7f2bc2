package manager

import (
	"context"
	"net/url"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	clientmetrics "k8s.io/client-go/tools/metrics"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
)

// requestLatency is a metric of MCM. controller-runtime exports only the number of requests, and component-base
// exports the latency under another name and in its own registry.
var requestLatency = prometheus.NewHistogramVec(prometheus.HistogramOpts{
	Name:    "rest_client_request_latency_seconds",
	Help:    "Latency of requests to API servers in seconds, by verb and by URL with placeholders.",
	Buckets: prometheus.ExponentialBuckets(0.001, 2, 10),
}, []string{"verb", "url"})

// init sets the variable of client-go directly, because clientmetrics.Register has an effect only once, and
// controller-runtime has already called it. No client reads the variable yet.
func init() {
	ctrlmetrics.Registry.MustRegister(requestLatency)
	clientmetrics.RequestLatency = latency{}
}

// latency receives the latencies from client-go.
type latency struct{}

// Observe implements clientmetrics.LatencyMetric. The URL has placeholders for names.
func (latency) Observe(_ context.Context, verb string, u url.URL, took time.Duration) {
	requestLatency.WithLabelValues(verb, u.String()).Observe(took.Seconds())
}
