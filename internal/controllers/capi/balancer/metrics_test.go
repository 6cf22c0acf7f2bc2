package balancer

import (
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
	corev1 "k8s.io/api/core/v1"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/internal/loadbalancer"
)

func TestMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, append(clusterOf("a"), machineOf("a", "one", infrav1.MachineAddress{Type: corev1.NodeInternalIP, Address: "10.0.0.1"}))...)
		h.connections, h.accepts, h.health = 1, true, loadbalancer.Ready
		h.start()
		h.settle("a")
		for range 3 { // the last two exceed the limit
			conn, err := h.ports[100].Dial(t.Context(), "")
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			go func() { _, _ = conn.Write([]byte("hello")) }() // until then, it uses no capacity
			synctest.Wait()
		}
		registry := prometheus.NewPedanticRegistry()
		registry.MustRegister(h.Controller)
		const want = `
# HELP millwright_load_balancer_connections Number of open client connections to the endpoint of a cluster.
# TYPE millwright_load_balancer_connections gauge
millwright_load_balancer_connections{name="a",namespace="ns"} 1
# HELP millwright_load_balancer_refused_connections_total Number of connections to the endpoint of a cluster that were closed because of too many connections.
# TYPE millwright_load_balancer_refused_connections_total counter
millwright_load_balancer_refused_connections_total{name="a",namespace="ns"} 2
# HELP millwright_load_balancer_servers Number of API servers of a cluster's control plane by health: ready, unready, or down.
# TYPE millwright_load_balancer_servers gauge
millwright_load_balancer_servers{health="down",name="a",namespace="ns"} 0
millwright_load_balancer_servers{health="ready",name="a",namespace="ns"} 1
millwright_load_balancer_servers{health="unready",name="a",namespace="ns"} 0
`
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		var got strings.Builder
		for _, family := range families {
			if _, err := expfmt.MetricFamilyToText(&got, family); err != nil {
				t.Fatal(err)
			}
		}
		if diff := cmp.Diff(strings.TrimSpace(want), strings.TrimSpace(got.String())); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}
