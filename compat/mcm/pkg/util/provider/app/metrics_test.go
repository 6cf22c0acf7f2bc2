package app

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

// TestDefaultMetricsAreServed: with the manager's, of any type, each once.
func TestDefaultMetricsAreServed(t *testing.T) {
	counter := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "test_requests_total", Help: "h"}, []string{"zone"})
	histogram := prometheus.NewHistogram(prometheus.HistogramOpts{Name: "test_seconds", Help: "h", ConstLabels: prometheus.Labels{"a": "b"}})
	prometheus.MustRegister(counter, histogram)
	counter.WithLabelValues("z1").Add(2)
	histogram.Observe(0.3)
	if err := serveDefaultMetrics(); err != nil {
		t.Fatal(err)
	}
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
			t.Errorf("the counter is %v", got)
		}
		if got := found["test_seconds"].GetMetric(); len(got) != 1 || got[0].GetHistogram().GetSampleCount() != 1 || got[0].GetLabel()[0].GetValue() != "b" {
			t.Errorf("the histogram is %v", got)
		}
		if found["test_requests_total"].GetType() != dto.MetricType_COUNTER || found["go_goroutines"] == nil {
			t.Error("a type or the metrics of Go are lost")
		}
	}
}
