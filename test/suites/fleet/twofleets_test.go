package fleet

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/driver/sim"
	"github.com/millwright-dev/millwright/test/support/freeport"
	"github.com/millwright-dev/millwright/test/support/program"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// measured is a replica that serves metrics.
type measured struct {
	*world
	*program.Process
	address string
}

// measuredReplica starts a replica of the fleet that selects namespaces with a label.
func (w *world) measuredReplica(label string) *measured {
	w.Helper()
	address := freeport.Address(w.T)
	args := append(leases("60s", "40s"), "--namespace-selector", label, "--address", address.Addr().String(), "--port", fmt.Sprint(address.Port()))
	return &measured{world: w, Process: w.replica(args...), address: address.String()}
}

// awaitState waits until the metrics report the given state of a namespace, and only one replica of the fleet. An empty state means
// that the metrics do not report the namespace.
func (m *measured) awaitState(namespace, state string) {
	m.world.Helper()
	prefix := fmt.Sprintf(`millwright_fleet_cluster_state{cluster=%q,`, namespace)
	m.eventually(func(g gomega.Gomega) {
		response, err := http.Get("http://" + m.address + "/metrics")
		g.Expect(err).NotTo(gomega.HaveOccurred())
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		g.Expect(err).NotTo(gomega.HaveOccurred())
		var states []string
		for line := range strings.Lines(string(text)) {
			if strings.HasPrefix(line, prefix) {
				states = append(states, strings.TrimSpace(line))
			}
		}
		g.Expect(string(text)).To(gomega.ContainSubstring("\nmillwright_fleet_replicas 1\n"))
		if state == "" {
			g.Expect(states).To(gomega.BeEmpty())
			return
		}
		g.Expect(states).To(gomega.ConsistOf(fmt.Sprintf(`%sstate=%q} 1`, prefix, state)))
	})
}

// updatedOnlyBy performs a rolling update, and checks that one process performs it.
func (c *cluster) updatedOnlyBy(m *measured, version string) {
	c.Helper()
	since := len(c.journal())
	c.update(version)
	c.eventually(func(g gomega.Gomega) {
		c.settled(g)
		g.Expect(c.effectsOf(since, sim.Created)).To(gomega.BeNumerically(">=", c.machines), "VMs created by the update to %s", version)
	})
	for _, entry := range c.journal()[since:] {
		if entry.PID != m.PID() {
			c.Fatalf("process %d performs the update to %s, but process %d recorded %+v", m.PID(), version, entry.PID, entry)
		}
	}
}

// effectsOf counts an effect on VMs after that many entries of the journal.
func (c *cluster) effectsOf(since int, effect sim.Effect) (count int) {
	c.Helper()
	for _, entry := range c.journal()[since:] {
		if entry.Effect == effect {
			count++
		}
	}
	return count
}

// TestFleet_TwoFleetsOfOneNamespace labels a namespace for two fleets. One of them must serve it, and the other must report the
// state standby. The other must take over when the label of the first fleet is removed during a rollout, and when the first fleet
// exits.
func TestFleet_TwoFleetsOfOneNamespace(t *testing.T) {
	tier.All(t)
	t.Attr("fault", "Two fleets select the same namespace, and the label of the fleet that serves it is removed during a rollout")
	w := newWorld(t)
	c := w.cluster("cluster", w.Target)
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: c.namespace}}
	label := func(name, value string) {
		w.patch(namespace, fmt.Sprintf(`{"metadata":{"labels":{%q:%s}}}`, name, value))
	}
	other := w.label + "-other"
	c.pool(3, `{"latency":"100ms","joinDelay":"500ms","tags":{"kubernetes.io/cluster/c":"1","kubernetes.io/role/node":"1"}}`, oneByOne)
	first := w.measuredReplica(w.label)
	w.eventually(c.settled)
	second := w.measuredReplica(other)
	label(other, `""`)
	second.awaitState(c.namespace, "standby")
	first.awaitState(c.namespace, "serving")
	c.updatedOnlyBy(first, "2")
	second.awaitState(c.namespace, "standby")

	since := len(c.journal())
	c.update("3")
	w.eventually(func(g gomega.Gomega) {
		g.Expect(c.effectsOf(since, sim.Created)).To(gomega.BeNumerically(">", 0), "the rollout has begun")
	})
	label(w.label, "null")
	first.awaitState(c.namespace, "")
	second.awaitState(c.namespace, "serving")
	w.eventually(func(g gomega.Gomega) {
		c.settled(g)
		g.Expect(c.effectsOf(since, sim.Created)).To(gomega.BeNumerically(">=", c.machines), "VMs created by the rollout")
	})
	c.updatedOnlyBy(second, "4")

	label(w.label, `""`)
	first.awaitState(c.namespace, "standby")
	c.updatedOnlyBy(second, "5")
	second.Stop()
	first.awaitState(c.namespace, "serving")
	c.updatedOnlyBy(first, "6")
	c.wantOneVMEach()
	first.Stop()
	var turns []int
	for _, entry := range c.journal() {
		if len(turns) == 0 || turns[len(turns)-1] != entry.PID {
			turns = append(turns, entry.PID)
		}
	}
	if want := []int{first.PID(), second.PID(), first.PID()}; fmt.Sprint(turns) != fmt.Sprint(want) {
		t.Errorf("the processes that called the driver alternated: %v, want %v", turns, want)
	}
	t.Attr("outcome", "One fleet serves the namespace, and the metrics of the other report the state standby; the other then completes the rollout; no Machine has two VMs")
}
