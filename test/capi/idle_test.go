package capi

import (
	"maps"
	"testing"
	"time"

	"github.com/onsi/gomega"
)

// idleTime is how long no client may write. The core looks at everything again after ten
// minutes at the latest, and at its connection to a cluster every ten seconds.
const idleTime = 2 * time.Minute

func TestNobodyWritesWhenThereIsNothingToDo(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	h.manager()
	h.pool("workers", 2, `{}`)
	h.eventually(func(g gomega.Gomega) {
		h.settled(g, 2)
		ready, _ := condition(h.get(g, "Cluster", h.cluster), "InfrastructureReady")["status"].(string)
		g.Expect(ready).To(gomega.Equal("True"))
	})
	h.staysQuiet(idleTime)
}

// staysQuiet checks that no client writes any object of this test for that long, once the
// core's own conditions have followed, which takes moments.
func (h *harness) staysQuiet(long time.Duration) {
	h.t.Helper()
	kinds := []string{
		"Cluster", "MachineDeployment", "MachineSet", "Machine",
		"MillwrightCluster", "MillwrightMachine", "MillwrightMachineTemplate", "MillwrightClusterTemplate",
	}
	versions := func(g gomega.Gomega) map[string]string {
		seen := map[string]string{}
		for _, kind := range kinds {
			for _, object := range h.list(g, kind) {
				seen[kind+" "+object.GetName()] = object.GetResourceVersion()
			}
		}
		return seen
	}
	g := gomega.NewWithT(h.t)
	settled, since := versions(g), time.Now()
	g.Eventually(func(g gomega.Gomega) {
		if now := versions(g); !maps.Equal(now, settled) {
			settled, since = now, time.Now()
		}
		g.Expect(time.Since(since)).To(gomega.BeNumerically(">", 10*time.Second))
	}).WithTimeout(waitTimeout).WithPolling(time.Second).Should(gomega.Succeed())
	g.Consistently(versions).WithTimeout(long).WithPolling(time.Second).Should(gomega.Equal(settled))
}
