package scenario

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/onsi/gomega"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/sim"
	"github.com/millwright-dev/millwright/test/support/program"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// TestManager_IsKilledDuringScaling kills the manager's process at ten moments, the same in each run, while a
// MachineDeployment is scaled from 0 to 50 machines and back. The provider's journal must show at most one VM for
// each Machine, and none at the end.
func TestManager_IsKilledDuringScaling(t *testing.T) {
	tier.All(t)
	const machines, kills = 50, 10
	random := rand.New(rand.NewPCG(1, 0))

	w := newScenario(t)
	deployment := w.pool("crash", machines, `{"latency":"100ms","jitter":0.5,"joinDelay":"300ms","visibleAfter":"150ms"}`)
	for kill := range kills {
		if kill == kills/2 {
			// At half-time, regardless of the progress, so that the second half of the kills hits deletions.
			survivor := w.manager()
			w.eventually(func(g gomega.Gomega) { w.settled(t.Context(), g, deployment) })
			survivor.Stop()
			w.oneVMEach(machines)
			w.scale(deployment, 0)
		}
		// Slow enough that the manager is working at every kill.
		manager := w.longLeases("--kube-api-qps", "50", "--kube-api-burst", "10")
		w.leads(manager)
		moment := time.Duration(random.Int64N(int64(600 * time.Millisecond)))
		time.Sleep(moment) // the moment itself
		manager.Kill()
		w.endLeases()
		t.Logf("kill %d, %v after taking the lead: %d VMs", kill+1, moment, w.countVMs())
	}
	manager := w.manager()
	w.leads(manager)
	w.eventually(func(g gomega.Gomega) { w.settled(t.Context(), g, deployment) })
	w.oneVMEach(0)
	w.eventually(func(g gomega.Gomega) {
		g.Expect(w.tokens(t.Context(), g)).To(gomega.BeEmpty(), "bootstrap tokens")
	})
	manager.Stop()
}

// endLeases expires the leases, so that the next manager need not wait.
func (w *scenario) endLeases() {
	w.t.Helper()
	for _, name := range []string{v1alpha1.LeaseMachineController, v1alpha1.LeaseMachineControllerManager} {
		lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace, Name: name}}
		if err := w.Client.Delete(w.t.Context(), lease); err != nil {
			w.t.Fatal(err)
		}
	}
}

// leads waits until the manager is the leader.
func (w *scenario) leads(manager *program.Process) {
	w.t.Helper()
	w.eventually(func(g gomega.Gomega) {
		g.Expect(manager.Output.String()).To(gomega.ContainSubstring("Starting workers"))
	})
}

func (w *scenario) countVMs() int {
	w.t.Helper()
	vms, err := w.cloud.VMs()
	if err != nil {
		w.t.Fatal(err)
	}
	return len(vms)
}

// oneVMEach checks in the journal that no Machine ever had two VMs, and that that many have one now.
func (w *scenario) oneVMEach(now int) {
	w.t.Helper()
	journal, err := w.cloud.Journal()
	if err != nil {
		w.t.Fatal(err)
	}
	alive := 0
	for machine, history := range sim.Histories(journal) {
		if history.MostAtOnce > 1 {
			w.t.Errorf("machine %s had %d VMs at the same time", machine, history.MostAtOnce)
		}
		alive += history.Left
	}
	if alive != now {
		w.t.Errorf("%d VMs exist by the journal, want %d", alive, now)
	}
}
