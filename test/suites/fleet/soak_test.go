package fleet

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/sim"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/program"
	"github.com/millwright-dev/millwright/test/support/tier"
)

const (
	// shortSoak is the duration of TestFleet_Soak if MILLWRIGHT_SOAK is not set.
	shortSoak = time.Minute
	// soakClusters is the number of clusters of TestFleet_Soak.
	soakClusters = 4
	// mostReplicas and mostMachines are the maximum numbers of replicas of all fleets, and of desired Machines of a cluster.
	mostReplicas, mostMachines = 3, 5
	// leastRounds is the minimum number of rounds, in which each operation is performed at least once.
	leastRounds = 3
	// operationsPerRound is the number of operations before everything must match the desired state.
	operationsPerRound = 12
	// longestPause is the longest time between two operations.
	longestPause = 2 * time.Second
	// suspension is how long a replica is suspended. It is longer than the duration of leases.
	suspension = 10 * time.Second
	// soakSpec is the providerSpec of all classes.
	soakSpec = `{"latency":"100ms","joinDelay":"500ms","tags":{"kubernetes.io/cluster/c":"1","kubernetes.io/role/node":"1"}}`
	// soakTimeout is longer than the maximum pause before a fleet restarts a manager that fails repeatedly.
	soakTimeout = 10 * time.Minute
)

// soak is a long run of random operations and faults.
type soak struct {
	*observer
	random *rand.Rand
	pools  []*soakPool
	// fleets are the labels of namespaces that two fleets select.
	fleets [2]string
	// replicas are the replicas of both fleets, running or suspended. leaving waits for the replicas that are stopping.
	replicas []*soakReplica
	leaving  sync.WaitGroup
	// deck contains the indexes of the next operations.
	deck []int
	// done counts operations by name, and rounds those after which everything matched the desired state.
	done   map[string]int
	rounds int
	// began is when the first round began, and story is what has happened in the current round.
	began time.Time
	story []string
}

// soakPool is a cluster, with the permitted states of its Machines.
type soakPool struct {
	*cluster
	*entrance
	// fleets are the fleets of its namespace.
	fleets [2]bool
	// tokens and classes are the numbers of kubeconfigs and of new classes so far.
	tokens, classes int
	// The observer's lock guards the following. least and most are the minimum and maximum numbers of desired Machines since the
	// round began, and disturbed are the Machines that were deleted or became NotReady.
	least, most int
	disturbed   map[string]bool
}

// soakReplica is a replica of a fleet.
type soakReplica struct {
	*program.Process
	// fleet is the index of its fleet.
	fleet int
	// resumed is when the replica is to be resumed. It is zero if the replica is not suspended.
	resumed time.Time
}

func (r *soakReplica) suspended() bool { return !r.resumed.IsZero() }

// TestFleet_Soak performs random operations in the clusters of two fleets during random faults, while replicas are killed,
// suspended, stopped, and started. The Machines of each cluster must stay within the bounds of its rolling updates, and after
// each round, everything must match the desired state. Without MILLWRIGHT_SOAK, the test is short and performs the same
// operations in each run.
func TestFleet_Soak(t *testing.T) {
	tier.All(t)
	length, random := tier.Soak(t, shortSoak)
	t.Attr("fault", fmt.Sprintf("Random operations and faults in %d clusters of two fleets for %v", soakClusters, length))
	s := newSoak(t, random)
	s.began = time.Now()
	for time.Since(s.began) < length || s.rounds < leastRounds {
		s.round()
		s.rounds++
		s.report()
	}
	s.end()
	for _, op := range soakOperations {
		if s.done[op.name] == 0 {
			t.Errorf("%q was never possible", op.name)
		}
	}
	t.Attr("outcome", fmt.Sprintf("Each of %d rounds of %d operations reaches the desired state within the bounds of rolling updates, and no Machine ever has two VMs (replicas killed: %d, suspended: %d, stopped: %d)",
		s.rounds, operationsPerRound, s.done[killReplica], s.done[suspendReplica], s.done[stopReplica]))
}

// newSoak returns a soak whose pools are complete.
func newSoak(t *testing.T, random *rand.Rand) *soak {
	t.Helper()
	w := newWorld(t, env.WithOwn()) // the seed's API server is killed
	s := &soak{random: random, fleets: [2]string{w.label, w.label + "-other"}, done: map[string]int{}}
	var clusters []*cluster
	for i := range soakClusters {
		p := &soakPool{cluster: w.cluster(fmt.Sprintf("c%d", i), w.Target), entrance: w.entrance(w.Target), fleets: [2]bool{true, false}, disturbed: map[string]bool{}}
		p.rotate()
		p.pool(2, soakSpec, oneByOne)
		p.most = p.machines
		s.pools, clusters = append(s.pools, p), append(clusters, p.cluster)
	}
	s.observer = w.observe(clusters, func(o *observer) { o.rule, o.restarts = s.bounds, true })
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the last round:\n%s", strings.Join(s.story, "\n"))
		}
	})
	s.settle()
	return s
}

// bounds checks that the number of Machines stays within the bounds of all desired states of this round. Machines that a user
// deleted, or whose Nodes became NotReady, may be unavailable. Machines that are being deleted do not count.
func (s *soak) bounds(c *cluster, known map[string]*v1alpha1.Machine, change watch.EventType) string {
	p := s.pools[slices.IndexFunc(s.pools, func(p *soakPool) bool { return p.cluster == c })]
	active, available := countsOf(known)
	const surge = 1
	if change == watch.Added && active > p.most+surge || change != watch.Added && available < p.least-len(p.disturbed) {
		return fmt.Sprintf("has %d Machines, of which %d are available, at %s: want at most %d, and at least %d without %v",
			active, available, time.Now().Format(clockFormat), p.most+surge, p.least, p.disturbed)
	}
	return ""
}

const clockFormat = "15:04:05.000"

// note records what happens.
func (s *soak) note(format string, values ...any) {
	s.story = append(s.story, time.Now().Format(clockFormat)+" "+fmt.Sprintf(format, values...))
}

// round performs some operations, and waits until everything matches the desired state.
func (s *soak) round() {
	s.Helper()
	s.story = nil
	for range operationsPerRound {
		s.resume(false)
		s.wantRunning()
		s.keepOne()
		if len(s.deck) == 0 {
			s.deck = s.random.Perm(len(soakOperations))
		}
		op := soakOperations[s.deck[0]]
		s.deck = s.deck[1:]
		s.note("%s", op.name)
		if op.do(s) {
			s.done[op.name]++
		}
		// Operations and faults do not all occur at the same time.
		time.Sleep(time.Duration(s.random.Int64N(int64(longestPause))))
	}
	s.settle()
}

// settle stops all faults, and waits until everything matches the desired state.
func (s *soak) settle() {
	s.Helper()
	s.resume(true)
	s.recoverTargets()
	s.serveAll()
	s.setNodesReady()
	s.note("all faults are over")
	var machines []string
	for _, p := range s.pools {
		s.awaitSoak(func(g gomega.Gomega) { s.converged(g, p) })
		machines = append(machines, p.names()...)
		for machine, history := range sim.Histories(p.journal()) {
			if history.MostAtOnce > 1 {
				s.Errorf("machine %s had %d VMs at the same time", machine, history.MostAtOnce)
			}
		}
	}
	s.awaitSoak(func(g gomega.Gomega) { g.Expect(s.nodes(g)).To(gomega.ConsistOf(machines), "Nodes") })
	s.wantRunning()
	s.wantNoViolations()
	if s.Failed() {
		s.FailNow()
	}
}

// awaitSoak is like eventually, but waits longer than all pauses.
func (s *soak) awaitSoak(check func(g gomega.Gomega)) {
	s.Helper()
	s.Eventually(check).WithTimeout(soakTimeout).WithPolling(100 * time.Millisecond).Should(gomega.Succeed())
}

// converged checks that a pool matches the desired state, and that the observer has seen this. It then resets the bounds to the
// desired state.
func (s *soak) converged(g gomega.Gomega, p *soakPool) {
	p.settled(g)
	deployment, list := p.deployment(), &v1alpha1.MachineList{}
	g.Expect(s.Client.Get(s.Context(), client.ObjectKeyFromObject(deployment), deployment)).To(gomega.Succeed())
	g.Expect(deployment.Spec.RollbackTo).To(gomega.BeNil(), "the rollback request of %s", p.namespace)
	g.Expect(s.Client.List(s.Context(), list, client.InNamespace(p.namespace))).To(gomega.Succeed())
	s.mu.Lock()
	defer s.mu.Unlock()
	known := s.machines[p.namespace]
	_, available := countsOf(known)
	g.Expect([]int{len(known), len(list.Items), available}).To(gomega.HaveEach(p.machines), "known, existing, and available Machines of %s", p.namespace)
	for _, machine := range list.Items {
		g.Expect(known).To(gomega.HaveKey(machine.Name))
		g.Expect(known[machine.Name].ResourceVersion).To(gomega.Equal(machine.ResourceVersion), "the known version of %s", machine.Name)
		g.Expect(machine.Spec.Class.Name).To(gomega.Equal(deployment.Spec.Template.Spec.Class.Name), "the class of %s", machine.Name)
	}
	p.least, p.most = p.machines, p.machines
	for name := range p.disturbed {
		if known[name] == nil {
			delete(p.disturbed, name) // the status of others may still change
		}
	}
}

// nodes returns the names of the Nodes.
func (s *soak) nodes(g gomega.Gomega) (names []string) {
	list := &corev1.NodeList{}
	g.Expect(s.Target.Client.List(s.Context(), list)).To(gomega.Succeed())
	for _, node := range list.Items {
		names = append(names, node.Name)
	}
	return names
}

// end deletes all Machines, and checks that no Machines and VMs remain.
func (s *soak) end() {
	s.Helper()
	for _, p := range s.pools {
		s.scaleTo(p, 0)
	}
	for _, p := range s.pools {
		s.awaitSoak(func(g gomega.Gomega) {
			g.Expect(p.names()).To(gomega.BeEmpty(), "Machines of %s", p.namespace)
			g.Expect(p.cloud.VMs()).To(gomega.BeEmpty(), "VMs of %s", p.namespace)
		})
	}
	s.awaitSoak(func(g gomega.Gomega) { g.Expect(s.nodes(g)).To(gomega.BeEmpty(), "Nodes") })
	s.wantNoViolations()
	for _, replica := range s.replicas {
		replica.Stop()
	}
	s.leaving.Wait()
}

// report logs the progress.
func (s *soak) report() {
	s.Helper()
	operations, vms, holders := 0, 0, 0
	for _, count := range s.done {
		operations += count
	}
	s.mu.Lock()
	for _, all := range s.holdings {
		holders += len(all)
	}
	s.mu.Unlock()
	for _, p := range s.pools {
		vms += p.effectsOf(0, sim.Created)
	}
	s.Logf("%v: %d rounds, %d operations, %d VMs created, %d holders of leases", time.Since(s.began).Round(time.Second), s.rounds, operations, vms, holders)
}

// TestFleet_SoakFindsViolations checks that TestFleet_Soak would detect states that must not occur.
func TestFleet_SoakFindsViolations(t *testing.T) {
	t.Parallel()
	p := &soakPool{cluster: &cluster{}, least: 2, most: 3, disturbed: map[string]bool{"disturbed": true}}
	s := &soak{pools: []*soakPool{p}}
	for name, tc := range map[string]struct {
		running, pending int
		change           watch.EventType
		found            bool
	}{
		"as many as permitted":               {3, 1, watch.Added, false},
		"one too many":                       {3, 2, watch.Added, true},
		"one disturbed Machine is missing":   {1, 3, watch.Modified, false},
		"another one is not available":       {0, 4, watch.Modified, true},
		"another one is deleted":             {0, 0, watch.Deleted, true},
		"the watch has shown a part of them": {0, 1, watch.Added, false},
	} {
		t.Run(name, func(t *testing.T) {
			known := map[string]*v1alpha1.Machine{}
			for i := range tc.running + tc.pending {
				machine := &v1alpha1.Machine{}
				if i < tc.running {
					machine.Status.CurrentStatus.Phase = v1alpha1.MachineRunning
				}
				known[fmt.Sprint(i)] = machine
			}
			if violation := s.bounds(p.cluster, known, tc.change); (violation != "") != tc.found {
				t.Errorf("%d running and %d pending Machines: %q", tc.running, tc.pending, violation)
			}
		})
	}
}
