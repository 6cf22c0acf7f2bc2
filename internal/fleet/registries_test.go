package fleet

import (
	"bytes"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"

	"github.com/millwright-dev/millwright/internal/observe/metrics"
)

// TestMetrics_HaveCluster checks that the metrics of two clusters with the same names are distinguished, and that those of a
// stopped one disappear.
func TestMetrics_HaveCluster(t *testing.T) {
	m, process := &registries{}, prometheus.NewRegistry()
	process.MustRegister(metrics.NewFleet(func() map[string]string { return map[string]string{"a": "serving"} }))
	for name, value := range map[string]float64{"a": 1, "b": 2} {
		registry, closed := m.open(name)
		defer closed()
		gauge := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "mcm_machine_items_total", Help: "h"}, []string{"z"})
		gauge.WithLabelValues("z").Set(value)
		registry.MustRegister(gauge)
	}
	_, closed := m.open("c")
	closed()
	families, err := m.gatherer(process).Gather()
	if err != nil {
		t.Fatal(err)
	}
	text := &bytes.Buffer{}
	for _, family := range families {
		if _, err := expfmt.MetricFamilyToText(text, family); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []string{
		`mcm_machine_items_total{cluster="a",z="z"} 1`, `mcm_machine_items_total{cluster="b",z="z"} 2`,
		`millwright_fleet_cluster_state{cluster="a",state="serving"} 1`, `millwright_fleet_replicas 0`,
	} {
		if !bytes.Contains(text.Bytes(), []byte(want+"\n")) {
			t.Errorf("%s is missing in\n%s", want, text)
		}
	}
}

// slow is a collector that takes as long as a scrape waits for a cache.
type slow struct{ prometheus.Gauge }

func (s slow) Collect(to chan<- prometheus.Metric) {
	time.Sleep(5 * time.Second)
	s.Gauge.Collect(to)
}

// TestMetrics_ClustersDoNotWaitForEachOther checks that a scrape with many starting clusters takes as long as with one.
func TestMetrics_ClustersDoNotWaitForEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r registries
		const clusters = 50
		for i := range clusters {
			registry, closed := r.open(fmt.Sprintf("cluster-%d", i))
			defer closed()
			registry.MustRegister(slow{prometheus.NewGauge(prometheus.GaugeOpts{Name: "g", Help: "h"})})
		}
		began := time.Now()
		families, err := r.gatherer(prometheus.NewRegistry()).Gather()
		if err != nil || len(families) != 1 || len(families[0].Metric) != clusters {
			t.Errorf("%d families, %v", len(families), err)
		}
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("the scrape took %v", took)
		}
	})
}
