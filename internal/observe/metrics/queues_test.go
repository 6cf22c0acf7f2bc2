package metrics

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
)

// TestQueue_Metrics checks with a real controller-runtime queue that its metrics are served with MCM's
// names and only label.
func TestQueue_Metrics(t *testing.T) {
	name := fmt.Sprintf("of-the-test-%d", time.Now().UnixNano()) // metrics of earlier runs in the process remain
	queue := priorityqueue.New[string](name)
	defer queue.ShutDown()
	high, low := 100, -100
	queue.AddWithOpts(priorityqueue.AddOpts{Priority: &high}, "a")
	queue.AddWithOpts(priorityqueue.AddOpts{Priority: &low}, "b", "c")
	item, _ := queue.Get()
	queue.Done(item)

	var served string
	gomega.NewWithT(t).Eventually(func() string { // the queue takes in what is added when it likes
		response := httptest.NewRecorder()
		Handler(ctrlmetrics.Registry).ServeHTTP(response, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		if response.Code != http.StatusOK {
			t.Fatalf("%d: %s", response.Code, response.Body)
		}
		served = response.Body.String()
		return served
	}).WithTimeout(waitTimeout).Should(gomega.And(
		gomega.ContainSubstring("\nmcm_workqueue_depth{name=%q} 2\n", name),
		gomega.ContainSubstring("\nmcm_workqueue_adds_total{name=%q} 3\n", name),
	))
	var got []string
	for line := range strings.Lines(served) {
		if strings.HasPrefix(line, "workqueue_") {
			t.Errorf("served under its original name: %s", line)
		}
		series, _, _ := strings.Cut(line, " ")
		if strings.HasPrefix(series, "mcm_workqueue_") && strings.Contains(series, name) && !strings.Contains(series, "_bucket{") {
			got = append(got, strings.ReplaceAll(series, name, "queue"))
		}
	}
	slices.Sort(got)
	want := []string{
		`mcm_workqueue_adds_total{name="queue"}`,
		`mcm_workqueue_depth{name="queue"}`,
		`mcm_workqueue_longest_running_processor_seconds{name="queue"}`,
		`mcm_workqueue_queue_duration_seconds_count{name="queue"}`,
		`mcm_workqueue_queue_duration_seconds_sum{name="queue"}`,
		`mcm_workqueue_retries_total{name="queue"}`,
		`mcm_workqueue_unfinished_work_seconds{name="queue"}`,
		`mcm_workqueue_work_duration_seconds_count{name="queue"}`,
		`mcm_workqueue_work_duration_seconds_sum{name="queue"}`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("want - got +\n%s", diff)
	}
}

// TestQueue_LeavesOtherMetricsUnchanged checks that other metrics are passed through, and that the gathered
// metrics, which may be shared, are not modified.
func TestQueue_LeavesOtherMetricsUnchanged(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	depth := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "workqueue_depth"}, []string{"name", "priority"})
	other := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "workqueues"}, []string{"name", "priority"})
	nameless := prometheus.NewGauge(prometheus.GaugeOpts{Name: "workqueue_nameless"})
	registry.MustRegister(depth, other, nameless)
	for _, vector := range []*prometheus.GaugeVec{depth, other} {
		vector.WithLabelValues("a", "1").Set(1)
		vector.WithLabelValues("a", "2").Set(2)
	}
	gathered, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	before := make([]string, len(gathered))
	for i := range gathered {
		before[i] = gathered[i].String()
	}
	ours, err := Gatherer(prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) { return slices.Clone(gathered), nil })).Gather()
	if err != nil {
		t.Fatal(err)
	}
	for i := range gathered {
		if got := gathered[i].String(); got != before[i] {
			t.Errorf("%s was changed to %s", before[i], got)
		}
	}
	sizes := map[string]int{}
	for _, family := range ours {
		sizes[family.GetName()] = len(family.Metric)
	}
	if diff := cmp.Diff(map[string]int{"mcm_workqueue_depth": 1, "workqueues": 2}, sizes); diff != "" {
		t.Errorf("series, want - got +\n%s", diff)
	}
}
