package manager

import (
	"context"
	"net/url"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	clientmetrics "k8s.io/client-go/tools/metrics"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
)

// requestLatency is a metric of MCM. controller-runtime exports the number of requests only, and
// component-base exports the latency under another name and in a registry of its own.
var requestLatency = prometheus.NewHistogramVec(prometheus.HistogramOpts{
	Name:    "rest_client_request_latency_seconds",
	Help:    "Latency of requests to API servers in seconds, by verb and by URL with placeholders.",
	Buckets: prometheus.ExponentialBuckets(0.001, 2, 10),
}, []string{"verb", "url"})

// client-go takes its metrics once, which controller-runtime has used up, or by this variable, which
// nothing may read yet.
func init() {
	ctrlmetrics.Registry.MustRegister(requestLatency)
	clientmetrics.RequestLatency = latency{}
}

// latency is what client-go reports to.
type latency struct{}

// Observe implements clientmetrics.LatencyMetric. The URL has placeholders for names.
func (latency) Observe(_ context.Context, verb string, u url.URL, took time.Duration) {
	requestLatency.WithLabelValues(verb, u.String()).Observe(took.Seconds())
}
