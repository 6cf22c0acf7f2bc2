package capi

import (
	"fmt"
	"maps"
	"net/http"
	"testing"
	"time"

	"github.com/onsi/gomega"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/millwright-dev/millwright/test/support/tier"
)

const (
	// idleTime is how long no client may write. The core checks MachineSets every fifteen seconds, its connection
	// to a cluster every ten, and all objects only after ten minutes.
	idleTime = 30 * time.Second
	// idlePasses is how many passes our manager makes for each object in that time, one per idleResync.
	idlePasses, idleResync = 5, 2 * time.Second
)

// idleControllers are our controllers, by the kinds of their objects.
var idleControllers = map[string]string{
	"millwrightmachine": "MillwrightMachine", "millwrightcluster": "MillwrightCluster", "millwrightmachinetemplate": "MillwrightMachineTemplate",
}

func TestMillwrightMachine_IdleWritesNothing(t *testing.T) {
	tier.All(t)
	t.Parallel()
	h := newHarness(t)
	port, err := h.ControlPlane.PortFor("metrics-"+h.Namespace, 0)
	if err != nil {
		t.Fatal(err)
	}
	h.manager("--port", fmt.Sprint(port), "--min-resync-period", idleResync.String())
	h.pool("workers", 2, `{}`)
	h.eventually(func(g gomega.Gomega) {
		h.settled(g, 2)
		ready, _ := condition(h.get(g, "Cluster", h.cluster), "InfrastructureReady")["status"].(string)
		g.Expect(ready).To(gomega.Equal("True"))
	})
	g := gomega.NewWithT(t)
	settled, before := h.comesToRest(), passes(g, port)
	h.isQuiet(settled, idleTime)
	h.eventually(func(g gomega.Gomega) {
		now := passes(g, port)
		for controller, kind := range idleControllers {
			objects := len(h.list(g, kind))
			g.Expect(objects).To(gomega.BeNumerically(">", 0), kind)
			g.Expect(now[controller]-before[controller]).To(gomega.BeNumerically(">=", idlePasses*objects), controller)
		}
	})
	g.Expect(h.versions(g)).To(gomega.Equal(settled), "after these passes")
}

// passes returns the number of passes of each controller, from the manager's metrics.
func passes(g gomega.Gomega, port int) map[string]int {
	response, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/metrics", port))
	g.Expect(err).NotTo(gomega.HaveOccurred())
	defer response.Body.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(response.Body)
	g.Expect(err).NotTo(gomega.HaveOccurred())
	made := map[string]int{}
	for _, metric := range families["controller_runtime_reconcile_total"].GetMetric() {
		for _, label := range metric.GetLabel() {
			if label.GetName() == "controller" {
				made[label.GetValue()] += int(metric.GetCounter().GetValue())
			}
		}
	}
	return made
}

// staysQuiet checks that no client writes any object of this test for that long, after the core has updated its
// conditions.
func (h *harness) staysQuiet(long time.Duration) {
	h.t.Helper()
	h.isQuiet(h.comesToRest(), long)
}

// comesToRest waits until no object of this test was written for ten seconds, and returns their versions.
func (h *harness) comesToRest() map[string]string {
	h.t.Helper()
	g := gomega.NewWithT(h.t)
	settled, since := h.versions(g), time.Now()
	g.Eventually(func(g gomega.Gomega) {
		if now := h.versions(g); !maps.Equal(now, settled) {
			settled, since = now, time.Now()
		}
		g.Expect(time.Since(since)).To(gomega.BeNumerically(">", 10*time.Second))
	}).WithTimeout(waitTimeout).WithPolling(time.Second).Should(gomega.Succeed())
	return settled
}

// isQuiet checks that the objects of this test keep these versions for that long.
func (h *harness) isQuiet(settled map[string]string, long time.Duration) {
	h.t.Helper()
	gomega.NewWithT(h.t).Consistently(h.versions).WithTimeout(long).WithPolling(time.Second).Should(gomega.Equal(settled))
}

// versions returns the versions of all objects of this test, by kind and name.
func (h *harness) versions(g gomega.Gomega) map[string]string {
	kinds := []string{
		"Cluster", "MachineDeployment", "MachineSet", "Machine",
		"MillwrightCluster", "MillwrightMachine", "MillwrightMachineTemplate", "MillwrightClusterTemplate",
	}
	seen := map[string]string{}
	for _, kind := range kinds {
		for _, object := range h.list(g, kind) {
			seen[kind+" "+object.GetName()] = object.GetResourceVersion()
		}
	}
	return seen
}
