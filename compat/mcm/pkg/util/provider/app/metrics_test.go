package app

import (
	"errors"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

// TestManager_ServesMetricsOfProvider: the manager serves the provider's metrics of any type, each once.
func TestManager_ServesMetricsOfProvider(t *testing.T) {
	counter := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "test_requests_total", Help: "h"}, []string{"zone"})
	histogram := prometheus.NewHistogram(prometheus.HistogramOpts{Name: "test_seconds", Help: "h", ConstLabels: prometheus.Labels{"a": "b"}})
	prometheus.MustRegister(counter, histogram)
	counter.WithLabelValues("z1").Add(2)
	histogram.Observe(0.3)
	clash := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "test_clash", Help: "the provider's"}, []string{"zone"})
	prometheus.MustRegister(clash, prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "test_wrong", Help: "is not a counter"}, func() float64 { return -1 }), invalid{})
	clash.WithLabelValues("z1").Set(7)
	own := prometheus.NewCounter(prometheus.CounterOpts{Name: "test_clash", Help: "the manager's"})
	metrics.Registry.MustRegister(own)
	before := metrics.Registry
	t.Cleanup(func() { metrics.Registry = before })
	serveDefaultMetrics()
	for range 2 {
		families, err := metrics.Registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		found := map[string]*dto.MetricFamily{}
		for _, family := range families {
			found[family.GetName()] = family
		}
		if got := found["test_requests_total"].GetMetric(); len(got) != 1 || got[0].GetCounter().GetValue() != 2 || got[0].GetLabel()[0].GetValue() != "z1" {
			t.Errorf("got counter %v", got)
		}
		if got := found["test_seconds"].GetMetric(); len(got) != 1 || got[0].GetHistogram().GetSampleCount() != 1 || got[0].GetLabel()[0].GetValue() != "b" {
			t.Errorf("got histogram %v", got)
		}
		if found["test_requests_total"].GetType() != dto.MetricType_COUNTER || found["go_goroutines"] == nil {
			t.Error("a metric has the wrong type, or the metrics of Go are missing")
		}
		if got := found["test_clash"]; got.GetHelp() != "the manager's" || len(got.GetMetric()) != 1 {
			t.Errorf("got %v for two metrics of the same name", got)
		}
	}
}

// invalid is a collector that fails.
type invalid struct{}

var desc = prometheus.NewDesc("test_invalid", "h", nil, nil)

func (invalid) Describe(to chan<- *prometheus.Desc) { to <- desc }

func (invalid) Collect(to chan<- prometheus.Metric) {
	to <- prometheus.NewInvalidMetric(desc, errors.New("the cloud does not respond"))
}
