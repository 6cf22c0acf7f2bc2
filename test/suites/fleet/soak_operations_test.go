package fleet

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/local/controlplane"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/serverfault"
)

// soakOperation is an operation of a user or an operator, or a fault.
type soakOperation struct {
	name string
	// do performs the operation, and reports whether it was possible.
	do func(*soak) bool
}

// Operations that the result of the test counts.
const (
	killReplica    = "kill a replica"
	suspendReplica = "suspend a replica"
	stopReplica    = "stop a replica"
)

// soakOperations are performed in random order. Those that occur several times are more frequent.
var soakOperations = []soakOperation{
	{"scale", (*soak).scale},
	{"scale", (*soak).scale},
	{"scale", (*soak).scale},
	{"roll out a new class", (*soak).rollOut},
	{"roll out a new class", (*soak).rollOut},
	{"roll out a new class", (*soak).rollOut},
	{"roll back", (*soak).rollBack},
	{"delete a Machine", (*soak).deleteMachine},
	{"delete a Machine", (*soak).deleteMachine},
	{"a Node is not ready", (*soak).unready},
	{"change the fleets of a namespace", (*soak).changeFleets},
	{"change the fleets of a namespace", (*soak).changeFleets},
	{"rotate a kubeconfig", (*soak).rotate},
	{"start a replica", (*soak).start},
	{"start a replica", (*soak).start},
	{"start a replica", (*soak).start},
	{killReplica, (*soak).kill},
	{killReplica, (*soak).kill},
	{stopReplica, (*soak).stop},
	{suspendReplica, (*soak).suspendReplica},
	{"a target is unreachable", (*soak).cut},
	{"a target is faulty", (*soak).misbehave},
	{"the targets recover", (*soak).recoverTargets},
	{"the API server of the seed is killed", (*soak).killSeed},
}

// anyPool returns a random pool.
func (s *soak) anyPool() *soakPool { return s.pools[s.random.IntN(len(s.pools))] }

func (s *soak) scale() bool {
	s.scaleTo(s.anyPool(), 1+s.random.IntN(mostMachines))
	return true
}

func (s *soak) scaleTo(p *soakPool, machines int) {
	s.Helper()
	s.note("scale %s to %d", p.namespace, machines)
	s.mu.Lock()
	p.machines, p.least, p.most = machines, min(p.least, machines), max(p.most, machines)
	s.mu.Unlock()
	s.patch(p.deployment(), fmt.Sprintf(`{"spec":{"replicas":%d}}`, machines))
}

// rollOut creates a class, and updates a pool to it.
func (s *soak) rollOut() bool {
	p := s.anyPool()
	p.classes++
	name := fmt.Sprintf("class-%d", p.classes)
	s.note("roll out %s in %s", name, p.namespace)
	p.class(name, soakSpec)
	s.patch(p.deployment(), fmt.Sprintf(`{"spec":{"template":{"spec":{"class":{"name":%q}}}}}`, name))
	return true
}

func (s *soak) rollBack() bool {
	p := s.anyPool()
	s.note("roll back %s", p.namespace)
	s.patch(p.deployment(), `{"spec":{"rollbackTo":{}}}`)
	return true
}

// disturb returns the name of a random Machine, which may be unavailable from now on, or false if there is none.
func (s *soak) disturb() (p *soakPool, name string, ok bool) {
	s.Helper()
	p = s.anyPool()
	names := p.names()
	choice := s.random.Int() // unconditional, so that later choices do not depend on the number of Machines
	if len(names) == 0 {
		return p, "", false
	}
	name = names[choice%len(names)]
	s.mu.Lock()
	p.disturbed[name] = true
	s.mu.Unlock()
	s.note("disturb %s in %s", name, p.namespace)
	return p, name, true
}

func (s *soak) deleteMachine() bool {
	p, name, ok := s.disturb()
	if !ok {
		return false
	}
	err := s.Client.Delete(s.Context(), &v1alpha1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace, Name: name}})
	if client.IgnoreNotFound(err) != nil {
		s.Fatal(err)
	}
	return err == nil
}

func (s *soak) unready() bool {
	_, name, ok := s.disturb()
	return ok && s.setReady(name, corev1.ConditionFalse)
}

// setReady sets the condition of a Node, and reports whether it exists.
func (s *soak) setReady(node string, ready corev1.ConditionStatus) bool {
	s.Helper()
	status := fmt.Sprintf(`{"status":{"conditions":[{"type":"Ready","status":%q,"reason":"Soak"}]}}`, ready)
	err := s.Target.Client.Status().Patch(s.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, client.RawPatch(types.StrategicMergePatchType, []byte(status)))
	if client.IgnoreNotFound(err) != nil {
		s.Fatal(err)
	}
	return err == nil
}

// setNodesReady makes all Nodes Ready.
func (s *soak) setNodesReady() {
	s.Helper()
	for _, name := range s.nodes(s.Gomega) {
		s.setReady(name, corev1.ConditionTrue)
	}
}

// changeFleets adds a namespace to fleets, or removes it. A namespace is often in both fleets, and rarely in none.
func (s *soak) changeFleets() bool {
	p := s.anyPool()
	for i := range s.fleets {
		s.setFleet(p, i, s.random.IntN(4) != 0)
	}
	return true
}

func (s *soak) setFleet(p *soakPool, fleet int, member bool) {
	s.Helper()
	value := "null"
	if member {
		value = `""`
	}
	s.note("namespace %s is in fleet %d: %t", p.namespace, fleet, member)
	p.fleets[fleet] = member
	s.patch(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: p.namespace}}, fmt.Sprintf(`{"metadata":{"labels":{%q:%s}}}`, s.fleets[fleet], value))
}

func (s *soak) rotate() bool {
	p := s.anyPool()
	s.note("rotate the kubeconfig of %s", p.namespace)
	p.rotate()
	return true
}

// rotate replaces the kubeconfig of a cluster. The previous one no longer works.
func (p *soakPool) rotate() {
	p.Helper()
	p.tokens++
	kubeconfig := p.kubeconfig(p.entrance.rotate(fmt.Sprintf("token-%d", p.tokens)))
	text, err := json.Marshal(map[string]any{"stringData": map[string]string{"kubeconfig": string(kubeconfig)}})
	if err != nil {
		p.Fatal(err)
	}
	p.patch(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace, Name: "target"}}, string(text))
}

// start starts a replica of either fleet, unless there are enough.
func (s *soak) start() bool {
	fleet := s.random.IntN(len(s.fleets))
	if len(s.replicas) >= mostReplicas {
		return false
	}
	s.startIn(fleet)
	return true
}

// startIn starts a replica of a fleet, with short leases and short timeouts for the replacement of Machines and the deletion of
// orphans.
func (s *soak) startIn(fleet int) {
	s.Helper()
	flags := append(leases("8s", "6s"), "--namespace-selector", s.fleets[fleet], "--machine-health-timeout", "3s", "--machine-safety-orphan-vms-period", "2s")
	replica := &soakReplica{Process: s.replica(flags...), fleet: fleet}
	s.note("start the replica %d of fleet %d", replica.PID(), fleet)
	s.replicas = append(s.replicas, replica)
}

// remove removes a random replica from the list, and returns it. Without suspended, it considers only replicas that are not
// suspended. It returns nil if there is none.
func (s *soak) remove(suspended bool) *soakReplica {
	choice, eligible := s.random.Int(), []*soakReplica{}
	for _, replica := range s.replicas {
		if suspended || !replica.suspended() {
			eligible = append(eligible, replica)
		}
	}
	if len(eligible) == 0 {
		return nil
	}
	chosen := eligible[choice%len(eligible)]
	s.replicas = slices.DeleteFunc(s.replicas, func(r *soakReplica) bool { return r == chosen })
	return chosen
}

func (s *soak) kill() bool {
	replica := s.remove(true)
	if replica == nil {
		return false
	}
	s.note("kill the replica %d", replica.PID())
	replica.Kill()
	return true
}

// stop stops a replica gracefully. The next operations do not wait for it.
func (s *soak) stop() bool {
	s.awaitStarted() // before that, SIGTERM kills the process
	replica := s.remove(false)
	if replica == nil {
		return false
	}
	s.note("stop the replica %d", replica.PID())
	s.leaving.Go(replica.Stop)
	return true
}

func (s *soak) suspendReplica() bool {
	s.awaitStarted()
	replica := s.remove(false)
	if replica == nil {
		return false
	}
	s.note("suspend the replica %d", replica.PID())
	var clusters []*cluster
	for _, p := range s.pools {
		clusters = append(clusters, p.cluster)
	}
	s.suspend(replica.Process, clusters...)
	replica.resumed = time.Now().Add(suspension)
	s.replicas = append(s.replicas, replica)
	return true
}

// resume resumes the replicas that have been suspended for long enough. If all is true, it waits and resumes all of them.
func (s *soak) resume(all bool) {
	s.Helper()
	for _, replica := range s.replicas {
		if !replica.suspended() || !all && time.Now().Before(replica.resumed) {
			continue
		}
		time.Sleep(time.Until(replica.resumed))
		s.note("resume the replica %d", replica.PID())
		replica.resumed = time.Time{}
		s.signal(replica.Process, syscall.SIGCONT)
	}
}

// wantRunning checks that no replica has exited by itself.
func (s *soak) wantRunning() {
	s.Helper()
	for _, replica := range s.replicas {
		select {
		case <-replica.Done():
			s.Fatalf("the replica %d exited with status %d", replica.PID(), replica.ExitCode())
		default:
		}
	}
}

// keepOne starts a replica if none runs, as a Deployment does.
func (s *soak) keepOne() {
	s.Helper()
	if !slices.ContainsFunc(s.replicas, func(r *soakReplica) bool { return !r.suspended() }) {
		s.startIn(0)
	}
}

// serveAll ensures that each namespace is in a fleet with a replica.
func (s *soak) serveAll() {
	s.Helper()
	s.keepOne()
	for _, p := range s.pools {
		served := slices.ContainsFunc(s.replicas, func(r *soakReplica) bool { return p.fleets[r.fleet] })
		if !served {
			s.setFleet(p, s.replicas[0].fleet, true)
		}
	}
}

func (s *soak) cut() bool {
	p := s.anyPool()
	s.note("the target of %s is unreachable", p.namespace)
	p.cut()
	return true
}

func (s *soak) misbehave() bool {
	p, faults, choice := s.anyPool(), serverfault.All(s.random.Uint64()), s.random.Int()
	fault := faults[choice%len(faults)]
	s.note("the target of %s %s", p.namespace, fault.Name)
	p.fault.Store(fault)
	return true
}

func (s *soak) recoverTargets() bool {
	for _, p := range s.pools {
		p.fault.Store(nil)
	}
	return true
}

// awaitStarted waits until all replicas have started.
func (s *soak) awaitStarted() {
	s.Helper()
	s.awaitSoak(func(g gomega.Gomega) {
		for _, replica := range s.replicas {
			started := strings.Contains(replica.Output.String(), "divided among the replicas")
			g.Expect(started).To(gomega.BeTrue(), "the replica %d has started", replica.PID())
		}
	})
}

// killSeed kills the API server of the seed, and waits until the restarted one serves the user of the fleet. A replica that
// started earlier would exit, because the API server at first denies access.
func (s *soak) killSeed() bool {
	s.Helper()
	s.awaitStarted()
	if err := s.ControlPlane.Kill(controlplane.APIServer); err != nil {
		s.Fatal(err)
	}
	s.awaitSoak(func(g gomega.Gomega) {
		user, err := client.New(s.user, client.Options{Scheme: env.NewScheme()})
		g.Expect(err).NotTo(gomega.HaveOccurred())
		g.Expect(user.List(s.Context(), &v1alpha1.MachineList{})).To(gomega.Succeed())
	})
	return true
}
