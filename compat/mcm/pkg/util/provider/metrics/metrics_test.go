package metrics_test

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	registry "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/gardener/machine-controller-manager/internal/recorder"
	"github.com/gardener/machine-controller-manager/pkg/util/provider/metrics"
)

// TestMetrics_AreThoseOfMCM: names and labels are MCM's, and the manager serves the metrics but does not record them.
func TestMetrics_AreThoseOfMCM(t *testing.T) {
	service := prometheus.Labels{"provider": "p", "service": "s"}
	operation := prometheus.Labels{"provider": "p", "operation": "o"}
	metrics.APIRequestCount.With(service).Inc()
	metrics.APIFailedRequestCount.With(service).Inc()
	metrics.APIRequestDuration.With(service).Observe(1)
	metrics.DriverAPIRequestDuration.With(operation).Observe(1)
	metrics.DriverFailedAPIRequests.With(prometheus.Labels{"provider": "p", "operation": "o", "error_code": "13"}).Inc()
	families, err := registry.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	served := map[string]bool{}
	for _, family := range families {
		served[family.GetName()] = true
	}
	for _, name := range []string{
		"requests_total", "requests_failed_total", "api_request_duration_seconds",
		"driver_request_duration_seconds", "driver_requests_failed_total",
	} {
		if !served["mcm_cloud_api_"+name] {
			t.Errorf("mcm_cloud_api_%s is not served", name)
		}
	}
	if !recorder.Provider {
		t.Error("the manager also records the metrics")
	}
}
