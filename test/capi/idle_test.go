package capi

import (
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
	kinds := []string{"Cluster", "MillwrightCluster", "MachineDeployment", "MachineSet", "Machine", "MillwrightMachine", "MillwrightMachineTemplate"}
	versions := func(g gomega.Gomega) map[string]string {
		seen := map[string]string{}
		for _, kind := range kinds {
			for _, object := range w.list(g, kind) {
				seen[kind+" "+object.GetName()] = object.GetResourceVersion()
			}
		}
		return seen
	}
	w.eventually(func(g gomega.Gomega) {
		w.settled(g, 2)
		ready, _ := condition(w.get(g, "Cluster", w.cluster), "InfrastructureReady")["status"].(string)
		g.Expect(ready).To(gomega.Equal("True"))
	})
	// The core's own conditions follow within moments.
	settled := versions(gomega.NewWithT(t))
	since := time.Now()
	w.eventually(func(g gomega.Gomega) {
		now := versions(g)
		if !gomega.NewGomega(func(string, ...int) {}).Expect(now).To(gomega.Equal(settled)) {
			settled, since = now, time.Now()
		}
		g.Expect(time.Since(since)).To(gomega.BeNumerically(">", 10*time.Second))
	})
	gomega.NewWithT(t).Consistently(versions).WithTimeout(idleTime).WithPolling(time.Second).Should(gomega.Equal(settled))
}
