package scenario

import (
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// The request budgets of docs/contributing/performance.md: requests per machine without watches, leases and
// events, including two requests of the simulated kubelet. Events and conflicts are not included: the number of
// conflicts depends on the speed of this machine.
const (
	budgetUp         = 9.5 // including the counters, of which there are 15 on an idle machine
	budgetRoll       = 20  // out of 21, including what withoutCounters excludes
	budgetDown       = 8.5
	budgetUpEvents   = 2.0
	budgetRollEvents = 4.0
	budgetDownEvents = 2.0
	budgetIdle       = 5
	budgetConflicts  = 1.0
)

func TestMachineDeployment_ScalesWithinRequestBudget(t *testing.T) {
	tier.All(t)
	const machines = 50
	w := newMeasured(t)
	deployment := w.pool("budget", 0, `{}`)
	manager := w.manager()
	w.eventually(func(g gomega.Gomega) { w.settled(t.Context(), g, deployment) })

	up := w.recorded("0 to 50", machines, func() {
		w.scale(deployment, machines)
		w.eventually(func(g gomega.Gomega) { w.settled(t.Context(), g, deployment) })
	})
	up.work -= up.counters()
	within(t, "scale up", up, machines, budgetUp, budgetUpEvents)

	roll := w.recorded("rolling update of 50", machines, func() {
		w.patch(deployment, `{"spec":{"strategy":{"type":"RollingUpdate","rollingUpdate":{"maxSurge":"20%","maxUnavailable":"20%"}},`+
			`"template":{"metadata":{"annotations":{"another":"version"}}}}}`)
		w.eventually(func(g gomega.Gomega) {
			w.settled(t.Context(), g, deployment)
			g.Expect(deployment.Status.UpdatedReplicas).To(gomega.BeEquivalentTo(machines), "updated replicas")
		})
	})
	roll.work -= roll.counters()
	within(t, "rolling update", roll, machines, budgetRoll, budgetRollEvents)

	idle := w.recorded("20 s idle", 0, func() { time.Sleep(20 * time.Second) }) // the measured time itself
	if got := idle.work; got > budgetIdle {
		t.Errorf("idle: %d requests in 20 s after the rollout, budget is %d", got, budgetIdle)
	}
	if got := idle.totals.Count(env.Event); got > 0 {
		t.Errorf("idle: %d events in 20 s after the rollout", got)
	}

	down := w.recorded("50 to 0", machines, func() {
		w.scale(deployment, 0)
		w.eventually(func(g gomega.Gomega) { w.settled(t.Context(), g, deployment) })
	})
	within(t, "scale down", down, machines, budgetDown, budgetDownEvents)

	w.eventually(func(g gomega.Gomega) {
		g.Expect(w.tokens(t.Context(), g)).To(gomega.BeEmpty(), "bootstrap tokens")
	})
	manager.Stop()
}

// measured is a scenario that counts requests.
type measured struct {
	*scenario
	servers []rest.Interface
	// own counts the requests of the test itself.
	own atomic.Int64
}

// newMeasured is for a test that runs alone, because other tests send requests.
func newMeasured(t *testing.T) *measured {
	t.Helper()
	w := &measured{scenario: newScenarioAlone(t)}
	for _, cluster := range []*env.Cluster{w.Cluster, w.Target} {
		w.servers = append(w.servers, kubernetes.NewForConfigOrDie(cluster.Admin).Discovery().RESTClient())
		access := rest.CopyConfig(cluster.Admin)
		access.Wrap(func(next http.RoundTripper) http.RoundTripper {
			return roundTripper(func(r *http.Request) (*http.Response, error) {
				w.own.Add(1)
				return next.RoundTrip(r)
			})
		})
		var err error
		if cluster.Client, err = client.New(access, client.Options{Scheme: env.NewScheme()}); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// cost is the number of requests that both API servers counted.
type cost struct {
	totals env.Totals
	// work returns the number of requests of kind Work, without those of the test itself.
	work int
}

// counters are the status patches of MachineSets and MachineDeployments. There are a few for each tenth of a
// second in which machines change, regardless of the number of machines, so their number depends on the speed of
// this machine.
func (c cost) counters() int {
	sum := 0
	for succeeded, count := range c.totals {
		if succeeded.Code != http.StatusConflict && (succeeded.Resource == "machinesets/status" || succeeded.Resource == "machinedeployments/status") {
			sum += count
		}
	}
	return sum
}

// conflicts are the writes that were rejected because the object had changed.
func (c cost) conflicts() int {
	sum := 0
	for succeeded, count := range c.totals {
		if succeeded.Code == http.StatusConflict && succeeded.Kind() == env.Work {
			sum += count
		}
	}
	return sum
}

// recorded runs a function, and logs the requests to both API servers until they are quiet.
func (w *measured) recorded(what string, machines int, do func()) cost {
	w.t.Helper()
	before := w.totals(gomega.NewWithT(w.t))
	w.own.Store(0)
	begin := time.Now()
	do()
	took, own := time.Since(begin), int(w.own.Load())
	totals := w.quiet().Since(before)
	c := cost{totals, totals.Count(env.Work) - own}
	w.t.Logf("%s: %.1f s, %d requests for %d machines, without %d of the test:\n%v", what, took.Seconds(), c.work, machines, own, totals)
	return c
}

// totals returns the totals of both API servers.
func (w *measured) totals(g gomega.Gomega) env.Totals {
	sum := env.Totals{}
	for _, server := range w.servers {
		totals, err := env.Scrape(w.t.Context(), server)
		g.Expect(err).NotTo(gomega.HaveOccurred())
		for succeeded, count := range totals {
			sum[succeeded] += count
		}
	}
	return sum
}

// quiet waits until the API servers have not handled a request for two seconds, and returns their totals. Events
// are sent one at a time, and long after the operation.
func (w *measured) quiet() (last env.Totals) {
	w.t.Helper()
	const still = 2 * time.Second
	gomega.NewWithT(w.t).Eventually(func(g gomega.Gomega) {
		was := last.Count(env.Work, env.Event)
		last = w.totals(g)
		g.Expect(last.Count(env.Work, env.Event)).To(gomega.Equal(was), "requests")
	}).WithTimeout(env.WaitTimeout).WithPolling(still).Should(gomega.Succeed())
	return last
}

func within(t *testing.T, what string, c cost, machines int, budget, events float64) {
	t.Helper()
	conflicts := c.conflicts()
	if got := float64(c.work-conflicts) / float64(machines); got > budget {
		t.Errorf("%s: %.2f requests per machine, budget is %.1f", what, got, budget)
	}
	if got := float64(conflicts) / float64(machines); got > budgetConflicts {
		t.Errorf("%s: %.2f conflicts per machine, budget is %.1f", what, got, budgetConflicts)
	}
	if got := float64(c.totals.Count(env.Event)) / float64(machines); got > events {
		t.Errorf("%s: %.2f events per machine, budget is %.1f", what, got, events)
	}
}

// TestNode_DeletionDeletesMachine checks that a Machine is deleted with its node, and that its MachineSet
// replaces it.
func TestNode_DeletionDeletesMachine(t *testing.T) {
	tier.All(t)
	w := newScenario(t)
	deployment := w.pool("node", 2, `{}`)
	w.manager()
	w.eventually(func(g gomega.Gomega) { w.settled(t.Context(), g, deployment) })
	var deleted corev1.Node
	w.eventually(func(g gomega.Gomega) { deleted = w.nodesOf(t.Context(), g, "node")[0] })
	if err := w.Target.Client.Delete(t.Context(), &deleted); err != nil {
		t.Fatal(err)
	}
	w.eventually(func(g gomega.Gomega) {
		for _, node := range w.nodesOf(t.Context(), g, "node") {
			g.Expect(node.UID).NotTo(gomega.Equal(deleted.UID))
		}
		w.settled(t.Context(), g, deployment)
	})
}
