package fleet

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/onsi/gomega"
	coordinationv1 "k8s.io/api/coordination/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/driver/sim"
	"github.com/millwright-dev/millwright/test/support/program"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// Leases of TestFleet_ScalesUnderLoad, as flags and as a duration.
const (
	scalingLease, scalingDeadline = "40s", "30s"
	scalingLeaseDuration          = 40 * time.Second
)

// member is a replica and the name of its Lease.
type member struct {
	*program.Process
	name string
}

// scaling is a fleet whose replicas start and exit.
type scaling struct {
	*observer
	members []member
	// alive are the names of the replicas that run.
	alive []string
	// counts and lengths are, by namespace, the number of holders of its leases and the length of its journal at the last call of
	// divided. owners are the replicas that served the namespaces.
	counts, lengths map[string]int
	owners          map[string]string
}

// join starts a replica with the given flags, and waits until it has a Lease. known are the replicas so far.
func (w *world) join(known []member, more ...string) member {
	w.Helper()
	joined := member{Process: w.replica(more...)}
	w.eventually(func(g gomega.Gomega) {
		list := &coordinationv1.LeaseList{}
		g.Expect(w.Client.List(w.Context(), list, client.InNamespace(w.Env.Namespace), client.HasLabels{"fleet.millwright.dev/replica"})).To(gomega.Succeed())
		for _, lease := range list.Items {
			if !slices.ContainsFunc(known, func(m member) bool { return m.name == lease.Name }) {
				joined.name = lease.Name
			}
		}
		g.Expect(joined.name).NotTo(gomega.BeEmpty(), "the Lease of the replica")
	})
	return joined
}

// ownerOf returns the replica that serves a namespace, as docs/design/0070-fleet.md describes.
func ownerOf(namespace string, alive []string) string {
	weight := func(replica string) uint64 {
		digest := sha256.Sum256([]byte(replica + "/" + namespace))
		return binary.BigEndian.Uint64(digest[:8])
	}
	return slices.MaxFunc(alive, func(a, b string) int {
		if weight(a) < weight(b) {
			return -1
		}
		return 1
	})
}

// pid returns the process of a replica.
func (s *scaling) pid(name string) int {
	return s.members[slices.IndexFunc(s.members, func(m member) bool { return m.name == name })].PID()
}

// divided waits until each replica has performed a complete rolling update in each of its namespaces, and no other replica acts
// in them. It checks that managers were not restarted in namespaces that the same replica still serves, and returns the
// namespaces that moved.
func (s *scaling) divided(what string) (moved []string) {
	s.Helper()
	for _, namespace := range slices.Sorted(maps.Keys(s.clusters)) {
		owner, count := ownerOf(namespace, s.alive), 0
		s.eventually(func(g gomega.Gomega) {
			g.Expect(s.updatedBy(namespace, s.pid(owner))).To(gomega.Succeed(), what)
			var err error
			count, err = s.count(namespace)
			g.Expect(err).NotTo(gomega.HaveOccurred(), what)
		})
		before := s.owners[namespace]
		switch {
		case before == owner:
			if count != s.counts[namespace] {
				s.Errorf("%s: %d managers of %s were started, although the same replica serves it", what, count-s.counts[namespace], namespace)
			}
			if err := s.onlyBy(namespace, s.pid(owner)); err != nil {
				s.Errorf("%s: %v", what, err)
			}
		case before != "":
			moved = append(moved, namespace)
		}
		s.owners[namespace], s.counts[namespace] = owner, count
	}
	for namespace, c := range s.clusters {
		s.lengths[namespace] = len(c.journal())
	}
	s.wantNoViolations()
	return moved
}

// updatedBy returns an error unless the process has created and deleted all Machines of a namespace since the last call of another
// process.
func (s *scaling) updatedBy(namespace string, pid int) error {
	created, deleted := 0, 0
	for _, entry := range slices.Backward(s.clusters[namespace].journal()) {
		if entry.PID != pid {
			break
		}
		switch entry.Effect {
		case sim.Created:
			created++
		case sim.Deleted:
			deleted++
		}
	}
	if desired := s.clusters[namespace].machines; created < desired || deleted < desired {
		return fmt.Errorf("process %d has created %d and deleted %d VMs of %s", pid, created, deleted, namespace)
	}
	return nil
}

// onlyBy returns an error if another process has called the driver for a namespace since the last call of divided.
func (s *scaling) onlyBy(namespace string, pid int) error {
	for _, entry := range s.clusters[namespace].journal()[s.lengths[namespace]:] {
		if entry.PID != pid {
			return fmt.Errorf("process %d, which does not serve %s, recorded %+v", entry.PID, namespace, entry)
		}
	}
	return nil
}

// wantOneAtATime checks that the replicas acted for a namespace one after another: each uninterrupted sequence of driver calls by
// one process must correspond to one holder of the leases.
func (s *scaling) wantOneAtATime(namespace string) {
	s.Helper()
	var turns []int
	for _, entry := range s.clusters[namespace].journal() {
		if len(turns) == 0 || turns[len(turns)-1] != entry.PID {
			turns = append(turns, entry.PID)
		}
	}
	if holders := s.counts[namespace]; len(turns) > holders {
		s.Errorf("the leases of %s had %d holders, but the processes that called the driver alternated: %v", namespace, holders, turns)
	}
}

// leave removes replicas in the given way, all at the same time.
func (s *scaling) leave(names []string, how func(*program.Process)) {
	s.Helper()
	var group sync.WaitGroup
	for _, one := range s.members {
		if slices.Contains(names, one.name) {
			group.Go(func() { how(one.Process) })
		}
	}
	group.Wait()
	s.alive = slices.DeleteFunc(s.alive, func(name string) bool { return slices.Contains(names, name) })
}

// busiest returns the replica, other than the first one, that serves the most namespaces.
func (s *scaling) busiest() string {
	count := map[string]int{}
	for _, owner := range s.owners {
		count[owner]++
	}
	return slices.MaxFunc(s.alive[1:], func(a, b string) int { return count[a] - count[b] })
}

// takeover returns the longest time between the last renewal of a lease by a killed replica and its acquisition by another one. It
// checks that the leases had expired by then.
func (s *scaling) takeover(moved []string) (longest time.Duration) {
	s.Helper()
	for _, namespace := range moved {
		before, now := s.last(namespace)
		vacant := now.acquired.Sub(before.renewed)
		if vacant < scalingLeaseDuration {
			s.Errorf("the leases of %s were taken %v after their last renewal, before they expired", namespace, vacant)
		}
		longest = max(longest, vacant)
	}
	return longest
}

// TestFleet_ScalesUnderLoad scales a fleet from one replica to five, kills one, and scales back to one, while the pools of ten
// clusters are updated continuously. Only one replica at a time may serve a namespace, rollouts must stay within their bounds, and
// clusters whose replica stays the same must not be disturbed.
func TestFleet_ScalesUnderLoad(t *testing.T) {
	tier.All(t)
	t.Attr("fault", "A fleet with rolling updates in 10 clusters is scaled from 1 replica to 5, one of them is killed, and the others are scaled to 1")
	const clusters, replicas, machines = 10, 5, 2
	const providerSpec = `{"latency":"200ms","joinDelay":"500ms","tags":{"kubernetes.io/cluster/c":"1","kubernetes.io/role/node":"1"}}`
	w := newWorld(t)
	var all []*cluster
	for i := range clusters {
		c := w.cluster(fmt.Sprintf("c%d", i), w.Target)
		c.pool(machines, providerSpec, oneByOne)
		all = append(all, c)
	}
	first := w.join(nil, leases(scalingLease, scalingDeadline)...)
	for _, c := range all {
		w.eventually(c.settled)
	}
	o := w.observe(all)
	stop := o.load()
	s := &scaling{observer: o, members: []member{first}, alive: []string{first.name}, counts: map[string]int{}, lengths: map[string]int{}, owners: map[string]string{}}
	s.divided("one replica")

	for range replicas - 1 {
		s.members = append(s.members, w.join(s.members, leases(scalingLease, scalingDeadline)...))
		s.alive = append(s.alive, s.members[len(s.members)-1].name)
	}
	up := s.divided("scaled up")

	s.leave([]string{s.busiest()}, (*program.Process).Kill)
	taken := s.divided("one replica killed")
	longest := s.takeover(taken)

	s.leave(slices.Clone(s.alive[1:]), (*program.Process).Stop)
	down := s.divided("scaled down")

	stop()
	updates := 0
	for _, c := range all {
		w.eventually(c.settled)
		c.wantOneVMEach()
		s.wantOneAtATime(c.namespace)
		updates += o.updates[c.namespace]
	}
	s.wantNoViolations()
	first.Stop()
	if len(up) == 0 || len(taken) == 0 || len(down) == 0 {
		t.Errorf("namespaces that moved: %v, %v, %v", up, taken, down)
	}
	t.Attr("outcome", fmt.Sprintf("Each namespace is served by one replica at a time; %d, %d, and %d namespaces move, and the managers of the others are not restarted; with leases of %v, "+
		"the namespaces of the killed replica are taken over at most %.0f s after their last renewal; %d rolling updates stay within their bounds, and no Machine has two VMs",
		len(up), len(taken), len(down), scalingLeaseDuration, longest.Seconds(), updates))
}
