package fleet

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/onsi/gomega"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// moment is when a replica is killed: at the given write to the seed since the beginning of an update. If after is true, the API
// server carries out the write. In either case, the replica gets no response.
type moment struct {
	write int
	after bool
}

func (m moment) String() string {
	if m.after {
		return fmt.Sprintf("after write %d", m.write)
	}
	return fmt.Sprintf("before write %d", m.write)
}

// gate is a proxy between one replica and the seed's API server. It counts writes. It does not count writes of leases and events,
// because controllers do not read these objects.
type gate struct {
	seed http.Handler
	kill func()

	mu sync.Mutex
	// writes is the number of writes since the last call of plan.
	writes int
	at     moment
	// reached is set at the moment when the replica is killed.
	reached bool
}

// newGate returns a gate that connects to the seed as the given user, and the URL of the gate.
func newGate(t *testing.T, user *rest.Config) (g *gate, address string) {
	t.Helper()
	to, err := url.Parse(user.Host)
	if err != nil {
		t.Fatal(err)
	}
	transport, err := rest.TransportFor(user)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(to)
	proxy.Transport, proxy.FlushInterval = transport, -1 // events of watches are passed on immediately
	g = &gate{seed: proxy}
	server := httptest.NewServer(g)
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	return g, server.URL
}

// plan starts to count from 0. The zero moment never occurs.
func (g *gate) plan(at moment) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.writes, g.at = 0, at
}

// came reports whether the moment has occurred.
func (g *gate) came() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.reached
}

// end returns the number of writes since the last call of plan, and whether the moment has occurred. It cannot occur later.
func (g *gate) end() (writes int, came bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.at = moment{}
	return g.writes, g.reached
}

// next counts a write. It reports whether it is the last write of the replica, and whether the API server carries it out.
func (g *gate) next() (last, carriedOut bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.writes++
	if g.writes != g.at.write {
		return false, true
	}
	g.reached = true
	return true, g.at.after
}

// ServeHTTP implements http.Handler.
func (g *gate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodGet || strings.Contains(r.URL.Path, "/leases") || strings.Contains(r.URL.Path, "/events") {
		g.seed.ServeHTTP(w, r)
		return
	}
	last, carriedOut := g.next()
	if !last {
		g.seed.ServeHTTP(w, r)
		return
	}
	if carriedOut {
		g.seed.ServeHTTP(httptest.NewRecorder(), r)
	}
	g.kill()
	panic(http.ErrAbortHandler) // closes the connection
}

// gated is a replica that connects to the seed through a gate.
type gated struct {
	member
	*gate
}

// takeovers is a fleet of two replicas. One of them is repeatedly killed and replaced.
type takeovers struct {
	*world
	clusters []*cluster
	// members are the replicas that run.
	members []gated
	// started counts the replicas so far, and version the updates.
	started, version int
}

// join starts a replica.
func (f *takeovers) join() {
	f.Helper()
	g, address := newGate(f.T, f.user)
	f.started++
	path := filepath.Join(f.dir, fmt.Sprintf("gate-%d", f.started))
	env.WriteKubeconfig(f.T, path, &rest.Config{Host: address})
	var known []member
	for _, one := range f.members {
		known = append(known, one.member)
	}
	joined := gated{f.world.join(known, append(leases("60s", "40s"), "--control-kubeconfig", path)...), g}
	g.kill = joined.Kill
	f.members = append(f.members, joined)
}

// owner returns the index of the replica that serves a cluster.
func (f *takeovers) owner(of *cluster) int {
	var alive []string
	for _, one := range f.members {
		alive = append(alive, one.name)
	}
	return slices.Index(alive, ownerOf(of.namespace, alive))
}

// rejoin starts a second replica, and waits until the namespaces that it serves have moved to it.
func (f *takeovers) rejoin() {
	f.Helper()
	var held [][2]string
	for _, c := range f.clusters {
		held = append(held, c.held())
	}
	f.join()
	for i, c := range f.clusters {
		if f.owner(c) == len(f.members)-1 {
			f.eventually(func(g gomega.Gomega) {
				now := c.held()
				g.Expect(now[0]).NotTo(gomega.Or(gomega.BeEmpty(), gomega.Equal(held[i][0])), "the holder of the leases of %s", c.namespace)
				g.Expect(now[1]).To(gomega.Equal(now[0]), "the holder of the leases of %s", c.namespace)
			})
		}
	}
}

// expire expires the leases of a killed replica, so that the other replica need not wait.
func (f *takeovers) expire(killed member, served []*cluster) {
	f.Helper()
	for _, c := range served {
		for _, name := range []string{v1alpha1.LeaseMachineController, v1alpha1.LeaseMachineControllerManager} {
			f.patch(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: c.namespace, Name: name}}, `{"spec":{"holderIdentity":""}}`)
		}
	}
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: f.Env.Namespace, Name: killed.name}}
	if err := f.Client.Delete(f.Context(), lease); err != nil {
		f.Fatal(err)
	}
}

// update updates the pools of all clusters, kills the replica that serves the first cluster at a moment, and waits until the updates
// are complete. It returns the number of writes of that replica, and whether the moment occurred.
func (f *takeovers) update(at moment) (writes int, killed bool) {
	f.Helper()
	victim := f.members[f.owner(f.clusters[0])]
	var served, others []*cluster
	for _, c := range f.clusters {
		if f.members[f.owner(c)].name == victim.name {
			served = append(served, c)
		} else {
			others = append(others, c)
		}
	}
	held := map[string][2]string{}
	for _, c := range others {
		held[c.namespace] = c.held()
	}
	f.version++
	victim.plan(at)
	for _, c := range f.clusters {
		c.update(fmt.Sprint(f.version))
	}
	updated := func(g gomega.Gomega) {
		for _, c := range f.clusters {
			c.settled(g)
		}
	}
	f.eventually(func(g gomega.Gomega) {
		if !victim.came() {
			updated(g)
		}
	})
	if writes, killed = victim.end(); killed {
		<-victim.Done()
		f.members = slices.DeleteFunc(f.members, func(one gated) bool { return one.name == victim.name })
		f.expire(victim.member, served)
		f.eventually(updated)
	}
	for _, c := range others {
		if now := c.held(); now != held[c.namespace] {
			f.Errorf("killed %s: the leases of %s, which another replica serves, moved from %v to %v", at, c.namespace, held[c.namespace], now)
		}
	}
	return writes, killed
}

// moments returns when to kill replicas in updates with the given number of writes: in an exhaustive run, before and after each
// write; otherwise, at a fixed sample of these moments.
func moments(writes int) (all []moment) {
	for write := range writes {
		all = append(all, moment{write + 1, false}, moment{write + 1, true})
	}
	if tier.Exhaustive() {
		return all
	}
	const sample = 5
	var chosen []moment
	for i := range sample {
		chosen = append(chosen, all[i*len(all)/sample+i%2])
	}
	return chosen
}

// TestFleet_ReplicaIsKilledAtWrites kills a replica before and after each of its writes to the seed during rolling updates of two
// clusters. The other replica must take over. The updates must stay within their bounds, complete, and leave one VM for each
// Machine. A cluster that the other replica already serves must not be disturbed.
func TestFleet_ReplicaIsKilledAtWrites(t *testing.T) {
	tier.All(t)
	t.Attr("fault", "A replica of a fleet is killed before or after a write, during rolling updates of two clusters")
	w := newWorld(t)
	f := &takeovers{world: w}
	const providerSpec = `{"tags":{"kubernetes.io/cluster/c":"1","kubernetes.io/role/node":"1"}}`
	for _, name := range []string{"a", "b"} {
		c := w.cluster(name, w.Target)
		c.pool(1, providerSpec, oneByOne)
		f.clusters = append(f.clusters, c)
	}
	f.join()
	for _, c := range f.clusters {
		w.eventually(c.settled)
	}
	o := w.observe(f.clusters)
	f.rejoin()
	writes, _ := f.update(moment{})
	all, hit := moments(writes), 0
	for _, at := range all {
		if len(f.members) < 2 {
			f.rejoin()
		}
		if _, killed := f.update(at); killed {
			hit++
		}
		if t.Failed() {
			t.Fatalf("killed %s of %d", at, writes)
		}
	}
	o.wantNoViolations()
	for _, c := range f.clusters {
		c.wantOneVMEach()
		w.patch(c.deployment(), `{"spec":{"replicas":0}}`)
		w.eventually(func(g gomega.Gomega) {
			g.Expect(c.names()).To(gomega.BeEmpty(), "Machines")
			g.Expect(c.cloud.VMs()).To(gomega.BeEmpty(), "VMs")
		})
	}
	// The number of writes differs slightly between updates, so the last moments may not occur.
	if least := len(all) * 4 / 5; hit < least {
		t.Errorf("the replica was killed in %d of %d updates, want at least %d", hit, len(all), least)
	}
	t.Attr("outcome", fmt.Sprintf("The other replica completes the updates within their bounds, with one VM for each Machine, and a cluster that it already serves is not disturbed (%d crash points)", hit))
}
