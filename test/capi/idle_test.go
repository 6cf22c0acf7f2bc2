package capi

import (
	"maps"
	"testing"
	"time"

	"github.com/onsi/gomega"
)

// idleTime is how long nobody may write. The core looks at everything again after ten
// minutes at the latest, and at its connection to a cluster every ten seconds.
const idleTime = 2 * time.Minute

func TestNobodyWritesWhenThereIsNothingToDo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.manager()
	w.pool("workers", 2, `{}`)
	w.eventually(func(g gomega.Gomega) {
		w.settled(g, 2)
		ready, _ := condition(w.get(g, "Cluster", w.cluster), "InfrastructureReady")["status"].(string)
		g.Expect(ready).To(gomega.Equal("True"))
	})
	w.staysQuiet(idleTime)
}

// staysQuiet checks that nobody writes any object of this world for that long, once the
// core's own conditions have followed, which takes moments.
func (w *world) staysQuiet(long time.Duration) {
	w.t.Helper()
	kinds := []string{
		"Cluster", "MachineDeployment", "MachineSet", "Machine",
		"MillwrightCluster", "MillwrightMachine", "MillwrightMachineTemplate", "MillwrightClusterTemplate",
	}
	versions := func(g gomega.Gomega) map[string]string {
		seen := map[string]string{}
		for _, kind := range kinds {
			for _, object := range w.list(g, kind) {
				seen[kind+" "+object.GetName()] = object.GetResourceVersion()
			}
		}
		return seen
	}
	g := gomega.NewWithT(w.t)
	settled, since := versions(g), time.Now()
	g.Eventually(func(g gomega.Gomega) {
		if now := versions(g); !maps.Equal(now, settled) {
			settled, since = now, time.Now()
		}
		g.Expect(time.Since(since)).To(gomega.BeNumerically(">", 10*time.Second))
	}).WithTimeout(patience).WithPolling(time.Second).Should(gomega.Succeed())
	g.Consistently(versions).WithTimeout(long).WithPolling(time.Second).Should(gomega.Equal(settled))
}
