package balancer

import (
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/millwright-dev/millwright/internal/loadbalancer"
)

var (
	servers = prometheus.NewDesc("millwright_load_balancer_servers",
		"Number of API servers of a cluster's control plane by health: ready, unready, or down.", []string{"health", "name", "namespace"}, nil)
	connections = prometheus.NewDesc("millwright_load_balancer_connections",
		"Number of open client connections to the endpoint of a cluster.", []string{"name", "namespace"}, nil)
	refused = prometheus.NewDesc("millwright_load_balancer_refused_connections_total",
		"Number of connections to the endpoint of a cluster that were closed because of too many connections.", []string{"name", "namespace"}, nil)
)

// Describe implements prometheus.Collector.
func (c *Controller) Describe(to chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{servers, connections, refused} {
		to <- desc
	}
}

// Collect implements prometheus.Collector. The labels name and namespace are those of the MillwrightCluster.
func (c *Controller) Collect(to chan<- prometheus.Metric) {
	for key, stats := range c.stats() {
		for _, health := range []loadbalancer.Health{loadbalancer.Down, loadbalancer.Unready, loadbalancer.Ready} {
			to <- prometheus.MustNewConstMetric(servers, prometheus.GaugeValue, float64(stats.Servers[health]), health.String(), key.Name, key.Namespace)
		}
		to <- prometheus.MustNewConstMetric(connections, prometheus.GaugeValue, float64(stats.Connections), key.Name, key.Namespace)
		to <- prometheus.MustNewConstMetric(refused, prometheus.CounterValue, float64(stats.Refused), key.Name, key.Namespace)
	}
}

// stats returns the statistics of the open ports.
func (c *Controller) stats() map[types.NamespacedName]loadbalancer.Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := map[types.NamespacedName]loadbalancer.Stats{}
	for key, e := range c.open {
		all[key] = e.Stats()
	}
	return all
}
