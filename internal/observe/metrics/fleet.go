package metrics

import "github.com/prometheus/client_golang/prometheus"

// LabelCluster is the label of a fleet's metrics with the namespace of a cluster.
const LabelCluster = "cluster"

var fleetClusterState = prometheus.NewDesc("millwright_fleet_cluster_state",
	"What this replica does for a namespace of the fleet; 1 for the current state.", []string{LabelCluster, "state"}, nil)

// Fleet exports the metrics of a fleet. Create one with NewFleet. Its methods may be called concurrently.
type Fleet struct {
	states   func() map[string]string
	replicas prometheus.Gauge
	problems *prometheus.CounterVec
	panics   *prometheus.CounterVec
}

// NewFleet returns the metrics of a fleet. states returns the state of each namespace that this replica serves.
func NewFleet(states func() map[string]string) *Fleet {
	return &Fleet{
		states:   states,
		replicas: prometheus.NewGauge(prometheus.GaugeOpts{Name: "millwright_fleet_replicas", Help: "Number of replicas of the fleet that are alive."}),
		problems: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "millwright_fleet_problems_total", Help: "Number of times that a namespace could not be served, by the reason of the event.",
		}, []string{LabelCluster, "reason"}),
		panics: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "millwright_fleet_panics_total", Help: "Number of panics that were contained. Cluster is empty if it is not known.",
		}, []string{LabelCluster}),
	}
}

// Replicas sets the number of replicas that are alive.
func (f *Fleet) Replicas(count int) { f.replicas.Set(float64(count)) }

// Problem counts a problem of a cluster.
func (f *Fleet) Problem(cluster, reason string) { f.problems.WithLabelValues(cluster, reason).Inc() }

// Panic counts a panic. cluster may be empty.
func (f *Fleet) Panic(cluster string) { f.panics.WithLabelValues(cluster).Inc() }

// Forget deletes the series of a cluster that left the fleet.
func (f *Fleet) Forget(cluster string) {
	f.problems.DeletePartialMatch(prometheus.Labels{LabelCluster: cluster})
	f.panics.DeletePartialMatch(prometheus.Labels{LabelCluster: cluster})
}

// Describe implements prometheus.Collector.
func (f *Fleet) Describe(ch chan<- *prometheus.Desc) {
	ch <- fleetClusterState
	for _, metric := range []prometheus.Collector{f.replicas, f.problems, f.panics} {
		metric.Describe(ch)
	}
}

// Collect implements prometheus.Collector.
func (f *Fleet) Collect(ch chan<- prometheus.Metric) {
	for cluster, state := range f.states() {
		ch <- prometheus.MustNewConstMetric(fleetClusterState, prometheus.GaugeValue, 1, cluster, state)
	}
	collectAll(ch, []prometheus.Collector{f.replicas, f.problems, f.panics})
}
