package fleet

import (
	"cmp"
	"maps"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"k8s.io/utils/ptr"

	"github.com/millwright-dev/millwright/internal/observe/metrics"
)

// registries are the registries of the metrics of the running managers, by namespace.
type registries struct {
	mu       sync.Mutex
	clusters map[string]*prometheus.Registry
}

// open returns an empty registry for the metrics of one run of a manager, which are exported until close is called.
func (r *registries) open(cluster string) (registry *prometheus.Registry, closed func()) {
	registry = prometheus.NewRegistry()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.clusters == nil {
		r.clusters = map[string]*prometheus.Registry{}
	}
	r.clusters[cluster] = registry
	return registry, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.clusters, cluster) // a namespace has at most one running manager
	}
}

// gatherer returns the metrics of this process, and those of the clusters with the label cluster.
func (r *registries) gatherer(process prometheus.Gatherer) prometheus.Gatherer {
	return prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		r.mu.Lock()
		clusters := maps.Clone(r.clusters)
		r.mu.Unlock()
		all := prometheus.Gatherers{process}
		// A cluster whose cache is not filled yet takes several seconds, and Gatherers gathers one after the other.
		var gathering sync.WaitGroup
		for _, cluster := range slices.Sorted(maps.Keys(clusters)) {
			var families []*dto.MetricFamily
			var err error
			gathering.Go(func() { families, err = labeled(cluster, clusters[cluster]).Gather() })
			all = append(all, prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) { return families, err }))
		}
		gathering.Wait()
		return all.Gather()
	})
}

// labeled adds the label of a cluster to its metrics.
func labeled(cluster string, from prometheus.Gatherer) prometheus.Gatherer {
	return prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		families, err := from.Gather()
		for _, family := range families {
			for _, metric := range family.Metric {
				// Collectors may share the labels of their metrics.
				labels := append(slices.Clone(metric.Label), &dto.LabelPair{Name: ptr.To(metrics.LabelCluster), Value: &cluster})
				slices.SortFunc(labels, func(a, b *dto.LabelPair) int { return cmp.Compare(a.GetName(), b.GetName()) })
				metric.Label = labels
			}
		}
		return families, err
	})
}
