package scenario

import (
	"testing"
	"time"

	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/millwright-dev/millwright/test/env"
)

// The request budgets of docs/performance.md: requests per machine, without watches,
// leases and events, the simulated kubelet's own two included. Events apart.
const (
	budgetUp         = 9.5
	budgetRoll       = 20 // of 21, with what withoutCounters leaves out
	budgetDown       = 8.5
	budgetUpEvents   = 2.0
	budgetRollEvents = 4.0
	budgetDownEvents = 2.0
	budgetIdle       = 5
)

func TestScaleUpAndDownWithinTheRequestBudget(t *testing.T) {
	const machines = 50
	w := newWorldAlone(t) // others would not be quiet
	deployment := w.pool("budget", 0, `{}`)
	manager := w.manager()
	w.eventually(time.Minute, func(g gomega.Gomega) { w.settled(t.Context(), g, deployment) })

	up := w.recorded("0 to 50", machines, func() {
		w.scale(deployment, machines)
		w.eventually(2*time.Minute, func(g gomega.Gomega) { w.settled(t.Context(), g, deployment) })
	})
	within(t, "scale up", up, machines, budgetUp, budgetUpEvents)

	roll := w.recorded("rolling update of 50", machines, func() {
		w.patch(deployment, `{"spec":{"strategy":{"type":"RollingUpdate","rollingUpdate":{"maxSurge":"20%","maxUnavailable":"20%"}},`+
			`"template":{"metadata":{"annotations":{"another":"version"}}}}}`)
		w.eventually(2*time.Minute, func(g gomega.Gomega) {
			w.settled(t.Context(), g, deployment)
			g.Expect(deployment.Status.UpdatedReplicas).To(gomega.BeEquivalentTo(machines), "updated replicas")
		})
	})
	within(t, "rolling update", withoutCounters(roll), machines, budgetRoll, budgetRollEvents)

	idle := w.recorded("20 s idle", 0, func() { time.Sleep(20 * time.Second) }) // the measured time itself
	if got := idle.Total(); got > budgetIdle {
		t.Errorf("idle: %d requests in 20 s after the rollout, budget is %d", got, budgetIdle)
	}
	if got := idle.Count(env.Filter{Kind: env.Event}); got > 0 {
		t.Errorf("idle: %d events in 20 s after the rollout", got)
	}

	down := w.recorded("50 to 0", machines, func() {
		w.scale(deployment, 0)
		w.eventually(2*time.Minute, func(g gomega.Gomega) { w.settled(t.Context(), g, deployment) })
	})
	within(t, "scale down", down, machines, budgetDown, budgetDownEvents)

	w.eventually(10*time.Second, func(g gomega.Gomega) {
		g.Expect(w.tokens(t.Context(), g)).To(gomega.BeEmpty(), "bootstrap tokens")
	})
	manager.Stop()
}

// recorded does something and reports what that cost both API servers until they are quiet,
// this test's own requests left out.
func (w *world) recorded(what string, machines int, do func()) *env.Report {
	w.t.Helper()
	control, target := w.Record(w.t), w.Target.Record(w.t)
	begin := time.Now()
	do()
	took := time.Since(begin)
	w.quiet()
	report := env.Join(control.Stop(), target.Stop())
	report = report.Where(env.Filter{UserAgent: "millwright-manager"}, env.Filter{UserAgent: "millwright-sim-kubelet"})
	perMachine := 0.0
	if machines > 0 {
		perMachine = report.PerN(machines)
	}
	w.t.Logf("%s: %.1f s, %d requests, %.2f per machine\n%s", what, took.Seconds(), report.Total(), perMachine, report.Table())
	return report
}

// quiet waits until nobody has asked either API server for anything for two seconds. Events go
// out one after another, and long after what they tell of.
func (w *world) quiet() {
	w.t.Helper()
	const still = 2 * time.Second
	servers := []rest.Interface{
		kubernetes.NewForConfigOrDie(w.Admin).Discovery().RESTClient(), kubernetes.NewForConfigOrDie(w.Target.Admin).Discovery().RESTClient(),
	}
	last := -1
	gomega.NewWithT(w.t).Eventually(func(g gomega.Gomega) {
		sum := 0
		for _, server := range servers {
			totals, err := env.Scrape(w.t.Context(), server)
			g.Expect(err).NotTo(gomega.HaveOccurred())
			for answered, count := range totals.Counts {
				if kind := answered.Kind(); kind == env.Work || kind == env.Event {
					sum += count
				}
			}
		}
		was := last
		last = sum
		g.Expect(sum).To(gomega.Equal(was), "requests")
	}).WithTimeout(time.Minute).WithPolling(still).Should(gomega.Succeed())
}

// withoutCounters leaves out the status patches of sets and deployments. There are some for
// each tenth of a second in which machines change, however many machines there are, so
// their number tells how fast this machine is.
func withoutCounters(report *env.Report) *env.Report {
	kept := &env.Report{}
	for _, request := range report.Requests {
		if request.Resource != "machinesets/status" && request.Resource != "machinedeployments/status" {
			kept.Requests = append(kept.Requests, request)
		}
	}
	return kept
}

func within(t *testing.T, what string, report *env.Report, machines int, budget, events float64) {
	t.Helper()
	if got := report.PerN(machines); got > budget {
		t.Errorf("%s: %.2f requests per machine, budget is %.1f", what, got, budget)
	}
	if got := float64(report.Count(env.Filter{Kind: env.Event})) / float64(machines); got > events {
		t.Errorf("%s: %.2f events per machine, budget is %.1f", what, got, events)
	}
}

// TestDeletingANodeDeletesItsMachine: its set makes another one.
func TestDeletingANodeDeletesItsMachine(t *testing.T) {
	w := newWorld(t)
	deployment := w.pool("node", 2, `{}`)
	w.manager()
	w.eventually(time.Minute, func(g gomega.Gomega) { w.settled(t.Context(), g, deployment) })
	var victim corev1.Node
	w.eventually(time.Minute, func(g gomega.Gomega) { victim = w.nodesOf(t.Context(), g, "node")[0] })
	if err := w.Target.Client.Delete(t.Context(), &victim); err != nil {
		t.Fatal(err)
	}
	w.eventually(time.Minute, func(g gomega.Gomega) {
		for _, node := range w.nodesOf(t.Context(), g, "node") {
			g.Expect(node.UID).NotTo(gomega.Equal(victim.UID))
		}
		w.settled(t.Context(), g, deployment)
	})
}
