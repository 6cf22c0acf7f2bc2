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
)

func TestMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGiven(t, append(clusterOf("a"), machineOf("a", "one", infrav1.MachineAddress{Type: corev1.NodeInternalIP, Address: "10.0.0.1"}))...)
		g.connections = 1
		g.start()
		g.reconciles("a")
		for range 3 { // the last two are too many
			conn, err := g.ports[100].Dial(t.Context(), "")
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
		}
		synctest.Wait()
		registry := prometheus.NewPedanticRegistry()
		registry.MustRegister(g.Controller)
		const want = `
# HELP millwright_load_balancer_connections Connections of clients to the endpoint of a cluster.
# TYPE millwright_load_balancer_connections gauge
millwright_load_balancer_connections{name="a",namespace="ns"} 1
# HELP millwright_load_balancer_refused_connections_total Connections to the endpoint of a cluster that were closed at once, as there were too many.
# TYPE millwright_load_balancer_refused_connections_total counter
millwright_load_balancer_refused_connections_total{name="a",namespace="ns"} 2
# HELP millwright_load_balancer_servers API servers of a cluster's control plane by what they answer: ready, unready, or down if they do not.
# TYPE millwright_load_balancer_servers gauge
millwright_load_balancer_servers{health="down",name="a",namespace="ns"} 1
millwright_load_balancer_servers{health="ready",name="a",namespace="ns"} 0
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
