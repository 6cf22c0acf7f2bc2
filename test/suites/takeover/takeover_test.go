package takeover

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/revision"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// state contains all objects of a fleet.
type state struct {
	deployments []v1alpha1.MachineDeployment
	sets        []v1alpha1.MachineSet
	machines    []v1alpha1.Machine
	nodes       []corev1.Node
}

// look reads the fleet of a test. The names of its nodes end with the suffix.
func look(t *testing.T, e *env.Env, suffix string) state {
	t.Helper()
	deployments, sets, machines, nodes := &v1alpha1.MachineDeploymentList{}, &v1alpha1.MachineSetList{}, &v1alpha1.MachineList{}, &corev1.NodeList{}
	for _, list := range []client.ObjectList{deployments, sets, machines} {
		must(t, e.Client.List(t.Context(), list, client.InNamespace(e.Namespace)))
	}
	must(t, e.Client.List(t.Context(), nodes))
	own := slices.DeleteFunc(nodes.Items, func(node corev1.Node) bool { return !strings.HasSuffix(node.Name, "-"+suffix) })
	return state{deployments.Items, sets.Items, machines.Items, own}
}

// versions returns the resource versions of all objects.
func (s state) versions() map[string]string {
	versions := map[string]string{}
	add := func(kind string, object client.Object) {
		versions[kind+" "+object.GetName()] = object.GetResourceVersion()
	}
	for i := range s.deployments {
		add("MachineDeployment", &s.deployments[i])
	}
	for i := range s.sets {
		add("MachineSet", &s.sets[i])
	}
	for i := range s.machines {
		add("Machine", &s.machines[i])
	}
	for i := range s.nodes {
		add("Node", &s.nodes[i])
	}
	return versions
}

// newest returns the MachineSet of a MachineDeployment's highest revision.
func (s state) newest(deployment string) *v1alpha1.MachineSet {
	revision := func(set *v1alpha1.MachineSet) int {
		n, _ := strconv.Atoi(set.Annotations[v1alpha1.AnnotationKeyRevision])
		return n
	}
	var best *v1alpha1.MachineSet
	for i := range s.sets {
		if set := &s.sets[i]; of(set.Name) == deployment && (best == nil || revision(set) > revision(best)) {
			best = set
		}
	}
	return best
}

func (s state) deployment(name string) *v1alpha1.MachineDeployment {
	at := slices.IndexFunc(s.deployments, func(d v1alpha1.MachineDeployment) bool { return d.Name == name })
	return &s.deployments[at]
}

// stays reports whether a Machine must survive the change of managers: it was usable or is preserved, and no
// rollout was going to replace it.
func (s state) stays(machine *v1alpha1.Machine) bool {
	if !machine.DeletionTimestamp.IsZero() || machine.Spec.ProviderID == "" {
		return false
	}
	deployment := s.deployment(of(machine.Name))
	return !s.rolls(deployment) || metav1.IsControlledBy(machine, s.newest(deployment.Name))
}

// leaving reports whether a Machine is being deleted.
func (s state) leaving() bool {
	return slices.ContainsFunc(s.machines, func(m v1alpha1.Machine) bool { return !m.DeletionTimestamp.IsZero() })
}

// complete reports whether the MachineDeployments have their desired Machines, with VMs where possible, and of
// the current template where required. A rollout can also look idle if the process of its next step gets no CPU
// time.
func (s state) complete() bool {
	machines := map[string]int{}
	for i := range s.machines {
		name := of(s.machines[i].Name)
		machines[name]++
		if slices.Contains(hopeless, name) {
			continue
		}
		if s.machines[i].Spec.ProviderID == "" || s.rolls(s.deployment(name)) && !metav1.IsControlledBy(&s.machines[i], s.newest(name)) {
			return false
		}
	}
	return !slices.ContainsFunc(s.deployments, func(d v1alpha1.MachineDeployment) bool {
		newest := s.newest(d.Name)
		begun := newest != nil && d.Spec.RollbackTo == nil && revision.Same(&newest.Spec.Template, &d.Spec.Template)
		return machines[d.Name] != int(d.Spec.Replicas) || s.rolls(&d) && !begun
	})
}

// rolls reports whether the Machines of a MachineDeployment are replaced when its template changes.
func (s state) rolls(d *v1alpha1.MachineDeployment) bool {
	return d.Spec.Strategy.Type == v1alpha1.RollingUpdateMachineDeploymentStrategyType && !d.Spec.Paused
}

// idle waits until everything is complete, no Machine is being deleted, and nothing was written for a while. It
// returns the state.
func idle(t *testing.T, e *env.Env, suffix string) state {
	t.Helper()
	return idleFor(t, e, suffix, 3*time.Second)
}

func idleFor(t *testing.T, e *env.Env, suffix string, quiet time.Duration) state {
	t.Helper()
	var last state
	since := time.Now()
	gomega.NewWithT(t).Eventually(func() time.Duration {
		now := look(t, e, suffix)
		if !now.complete() || now.leaving() || !cmp.Equal(now.versions(), last.versions()) {
			last, since = now, time.Now()
		}
		return time.Since(since)
	}).WithTimeout(waitTimeout).WithPolling(200*time.Millisecond).Should(gomega.BeNumerically(">", quiet), func() string {
		return fmt.Sprintf("it does not come to rest: %v", slices.Sorted(maps.Keys(last.versions())))
	})
	return last
}

// TestTakeover_FromEachRecordedState replaces MCM by our manager at each recorded moment.
func TestTakeover_FromEachRecordedState(t *testing.T) {
	tier.All(t)
	t.Parallel()
	moments := map[string]func(*testing.T){}
	for _, file := range recordings(t) {
		moment := strings.TrimSuffix(filepath.Base(file), ".json")
		moments[moment] = func(t *testing.T) {
			e := env.New(t)
			suffix := moment[:2]
			load(t, e, file, suffix)
			before := look(t, e, suffix)
			p := newProvider(e, before.machines...)
			run(t, e, p, &gate{})
			if slices.Contains(inMidUpdate, moment) {
				goesOn(t, e, suffix)
			}
			after := idle(t, e, suffix)
			compare(t, before, after, p)
			if deployment := atRest[moment]; deployment != "" {
				untouched(t, before, after, deployment)
			}
		}
	}
	together(t, moments)
}

// inMidUpdate are the moments at which the MachineDeployment "inplace" is being updated.
var inMidUpdate = []string{"23-inplace-candidates", "24-inplace-ready-for-update", "25-inplace-node-updated"}

// goesOn acts as the agents until all Machines of the MachineDeployment "inplace" are updated and belong to its
// new MachineSet.
func goesOn(t *testing.T, e *env.Env, suffix string) {
	t.Helper()
	gomega.NewWithT(t).Eventually(func(g gomega.Gomega) {
		updateOne(t, e.Client, func(name string) bool { return strings.HasSuffix(name, "-"+suffix) })
		g.Expect(updated(look(t, e, suffix))).To(gomega.BeTrue())
	}).WithTimeout(waitTimeout).WithPolling(100 * time.Millisecond).Should(gomega.Succeed())
}

// updated reports whether all Machines of the MachineDeployment "inplace" are updated and belong to its new
// MachineSet.
func updated(now state) bool {
	status := now.deployment("inplace").Status
	complete := slices.ContainsFunc(status.Conditions, func(c v1alpha1.MachineDeploymentCondition) bool {
		return c.Type == v1alpha1.MachineDeploymentProgressing && c.Reason == v1alpha1.DeploymentReasonComplete
	})
	return complete && status.UpdatedReplicas == 3 && !slices.ContainsFunc(now.machines, func(machine v1alpha1.Machine) bool {
		return of(machine.Name) == "inplace" && !metav1.IsControlledBy(&machine, now.newest("inplace"))
	})
}

// atRest are the moments at which a MachineDeployment was settled.
var atRest = map[string]string{
	"02-running": "pool", "10-rolled-out": "pool", "20-running": "scaled", "22-scale-down-by-name-done": "scaled", "27-preserve-when-failed-annotated": "inplace",
}

// untouched checks that no object of a settled MachineDeployment was written, whatever its state.
func untouched(t *testing.T, before, after state, deployment string) {
	t.Helper()
	is := after.versions()
	for object, version := range before.versions() {
		if _, name, _ := strings.Cut(object, " "); of(name) == deployment && is[object] != version {
			t.Errorf("%s was written, though it was at rest", object)
		}
	}
}

// hopeless are the MachineDeployments whose provider never creates a VM.
var hopeless = []string{"nocap", "broken"}

// compare checks that nothing was rolled out, recreated or lost, and that there are as many Machines as desired.
func compare(t *testing.T, before, after state, p *provider) {
	t.Helper()
	made, removed := p.did()
	vms := map[string]int{} // expected, existing and created VMs
	for i := range before.machines {
		if was := &before.machines[i]; before.stays(was) {
			vms[of(was.Name)]++
			outlives(t, was, after, removed)
		}
	}
	for _, name := range made {
		vms[of(name)]++
	}
	machines := map[string]int{}
	for i := range after.machines {
		machines[of(after.machines[i].Name)]++
	}
	for i := range before.deployments {
		name, desired := before.deployments[i].Name, int(before.deployments[i].Spec.Replicas)
		if machines[name] != desired {
			t.Errorf("deployment %s has %d Machines, want %d", name, machines[name], desired)
		}
		if slices.Contains(hopeless, name) {
			desired = 0
		}
		if vms[name] != desired {
			t.Errorf("deployment %s has %d VMs that stayed or were made, want %d; made: %q", name, vms[name], desired, made)
		}
	}
	if diff := cmp.Diff(before.setIDs(), after.setIDs()); diff != "" {
		t.Errorf("sets, before - after +:\n%s", diff)
	}
}

// outlives checks that a Machine and its VM still exist unchanged.
func outlives(t *testing.T, was *v1alpha1.Machine, after state, removed []string) {
	t.Helper()
	at := slices.IndexFunc(after.machines, func(m v1alpha1.Machine) bool { return m.UID == was.UID })
	if at < 0 || !after.machines[at].DeletionTimestamp.IsZero() || slices.Contains(removed, was.Name) {
		t.Errorf("machine %s is lost", was.Name)
		return
	}
	if diff := cmp.Diff(was.Spec, after.machines[at].Spec); diff != "" {
		t.Errorf("machine %s, before - after +:\n%s", was.Name, diff)
	}
}

// setIDs returns the UIDs of all MachineSets by name.
func (s state) setIDs() map[string]types.UID {
	ids := map[string]types.UID{}
	for i := range s.sets {
		ids[s.sets[i].Name] = s.sets[i].UID
	}
	return ids
}
