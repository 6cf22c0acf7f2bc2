package takeover

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/manager"
	"github.com/millwright-dev/millwright/internal/pool/inplaceupdate"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/tier"
	"github.com/millwright-dev/millwright/test/support/upstream"
)

// otherHalf is the process that stays MCM's when ours replaces the other one.
var otherHalf = map[manager.Half]manager.Half{manager.HalfSets: manager.HalfMachines, manager.HalfMachines: manager.HalfSets}

// healthTimeout is short, so that a test can wait for it.
const healthTimeout = 2 * time.Second

// restOfHalves is how long nothing is written once everything is complete. The MCM double performs a step every
// 200 ms.
const restOfHalves = 1500 * time.Millisecond

// startMCMs starts MCM's process with the health timeout; 0 for the default. It returns a function that stops it
// before the end of the test. The test fails if it writes something that was not recorded of MCM.
func startMCMs(t *testing.T, e *env.Env, p *provider, half manager.Half, health time.Duration) (stop func()) {
	t.Helper()
	process := upstream.NewControllerManager(e.Client, e.Namespace)
	if half == manager.HalfMachines {
		process = upstream.NewMachineController(e.Client, e.Namespace, p, upstream.Timeouts{Health: health})
	}
	ctx, cancel := context.WithCancel(context.Background()) // the test's context is canceled before the cleanup
	ended := make(chan func(), 1)
	go func() {
		made, err := process.Run(ctx)
		ended <- func() {
			if err != nil {
				t.Errorf("MCM's %s: %v", half, err)
			}
			recorded, described := upstream.Recorded(), upstream.Described()
			for _, write := range made {
				if !recorded[write] && !described[write] {
					t.Errorf("MCM was never seen to write: %s", write)
				}
			}
		}
	}()
	stop = sync.OnceFunc(func() {
		cancel()
		(<-ended)()
	})
	t.Cleanup(stop)
	return stop
}

// TestTakeover_OneProcess replaces either MCM process by ours at each recorded moment, with MCM's other process, and
// then switches back.
func TestTakeover_OneProcess(t *testing.T) {
	tier.All(t)
	t.Parallel()
	moments := map[string]func(*testing.T){}
	for half, other := range otherHalf {
		for _, file := range recordings(t) {
			moment := strings.TrimSuffix(filepath.Base(file), ".json")
			moments[string(half)+"/"+moment] = func(t *testing.T) {
				e := env.New(t)
				suffix := fmt.Sprint(len(half)) + moment[:2]
				load(t, e, file, suffix)
				before := look(t, e, suffix)
				p := newProvider(e, before.machines...)
				startMCMs(t, e, p, other, 0)
				stop := start(t, e, p, access(t, e, &gate{}), manager.Config{Settings: manager.Settings{Half: half}})
				if slices.Contains(inMidUpdate, moment) {
					goesOn(t, e, suffix)
				}
				after := idleFor(t, e, suffix, restOfHalves)
				compare(t, before, after, p)
				stop()
				startMCMs(t, e, p, half, 0)
				back := idleFor(t, e, suffix, restOfHalves)
				for i := range after.machines {
					_, removed := p.did()
					outlives(t, &after.machines[i], back, removed)
				}
			}
		}
	}
	together(t, oneHalfOfEach(t, moments))
}

// oneHalfOfEach selects which of our processes runs a story, from stories with names HALF/STORY: the processes
// alternate. An exhaustive run uses both.
func oneHalfOfEach(t *testing.T, stories map[string]func(*testing.T)) map[string]func(*testing.T) {
	t.Helper()
	rows := map[string][]string{} // the names of each story's variants
	for _, name := range slices.Sorted(maps.Keys(stories)) {
		_, story, _ := strings.Cut(name, "/")
		rows[story] = append(rows[story], name)
	}
	names, chosen := slices.Sorted(maps.Keys(rows)), map[string]func(*testing.T){}
	for i, story := range names {
		for turn, name := range rows[story] {
			if tier.Exhaustive() || turn == i%len(otherHalf) {
				chosen[name] = stories[name]
			}
		}
	}
	return chosen
}

// TestTakeover_SwapsProcessesDuringInPlaceUpdate alternates between our process and MCM's, from each recorded moment of an
// in-place update to its end. It switches at each moment.
func TestTakeover_SwapsProcessesDuringInPlaceUpdate(t *testing.T) {
	tier.All(t)
	t.Parallel()
	stories := map[string]func(*testing.T){}
	for which, other := range otherHalf {
		for _, moment := range inMidUpdate {
			stories[string(which)+"/"+moment] = func(t *testing.T) {
				e := env.New(t)
				suffix := fmt.Sprint("s", len(which)) + moment[:2]
				load(t, e, path(moment), suffix)
				before := look(t, e, suffix)
				f := &fleet{Env: e, t: t, provider: newProvider(e, before.machines...), gate: &gate{}}
				startMCMs(t, e, f.provider, other, 0)
				turns := f.turns(which)
				f.swaps(turns[0](), turns, 1, func() bool {
					updateOne(t, e.Client, func(name string) bool { return strings.HasSuffix(name, "-"+suffix) })
					return updated(look(t, e, suffix))
				})
				compare(t, before, idleFor(t, e, suffix, restOfHalves), f.provider)
			}
		}
	}
	together(t, oneHalfOfEach(t, stories))
}

// half is a fleet managed by one of our processes and the other one of MCM.
type half struct{ *fleet }

// beginHalf creates a MachineDeployment of the second recording.
func beginHalf(t *testing.T, which manager.Half, deployment string) half {
	t.Helper()
	f := declare(t, "20-running", deployment)
	startMCMs(t, f.Env, f.provider, otherHalf[which], healthTimeout)
	cfg := manager.Config{Settings: manager.Settings{Half: which}}
	cfg.Health.Timeout = healthTimeout
	start(t, f.Env, f.provider, access(t, f.Env, f.gate), cfg)
	return half{f}
}

// current reads the deployment.
func (f *fleet) current(g gomega.Gomega) *v1alpha1.MachineDeployment {
	d := &v1alpha1.MachineDeployment{}
	g.Expect(f.Client.Get(f.t.Context(), client.ObjectKeyFromObject(f.deployment), d)).To(gomega.Succeed())
	return d
}

// settled checks that the MachineDeployment has its Machines, all of them Running and of the class, and that no
// node has traces of a rollout.
func (f *fleet) settled(g gomega.Gomega, replicas int, class string) {
	status := f.current(g).Status
	g.Expect([]int32{status.Replicas, status.UpdatedReplicas, status.AvailableReplicas}).To(gomega.HaveEach(int32(replicas)), "all, updated and available replicas")
	machines := f.machines()
	g.Expect(machines).To(gomega.HaveLen(replicas))
	for i := range machines {
		m := &machines[i]
		g.Expect(m.Status.CurrentStatus.Phase).To(gomega.Equal(v1alpha1.MachineRunning), m.Name)
		g.Expect(m.Spec.Class.Name).To(gomega.Equal(class), m.Name)
		node := &corev1.Node{}
		g.Expect(f.Client.Get(f.t.Context(), client.ObjectKey{Name: m.Labels[v1alpha1.NodeLabelKey]}, node)).To(gomega.Succeed())
		g.Expect(node.Annotations).NotTo(gomega.HaveKey(v1alpha1.AnnotationKeyScaleDownDisabledByMCM), m.Name)
		g.Expect(node.Spec.Taints).NotTo(gomega.ContainElement(gomega.HaveField("Key", v1alpha1.TaintKeyPreferNoSchedule)), m.Name)
		g.Expect(node.Labels).To(gomega.HaveKeyWithValue(v1alpha1.LabelKeyMachineName, m.Name))
		g.Expect(node.Labels).To(gomega.HaveKeyWithValue("pool", "scaled"), "the template's label")
		g.Expect(node.Finalizers).To(gomega.ContainElement(v1alpha1.FinalizerNode))
	}
}

func (f *fleet) eventually(check func(g gomega.Gomega)) {
	f.t.Helper()
	gomega.NewWithT(f.t).Eventually(check).WithTimeout(waitTimeout).WithPolling(200 * time.Millisecond).Should(gomega.Succeed())
}

func (f *fleet) settles(replicas int, class string) {
	f.t.Helper()
	f.eventually(func(g gomega.Gomega) { f.settled(g, replicas, class) })
}

// TestTakeover_MixedProcesses runs either of our processes with MCM's other one through all user operations.
func TestTakeover_MixedProcesses(t *testing.T) {
	tier.All(t)
	t.Parallel()
	stories := map[string]func(*testing.T){}
	for which := range otherHalf {
		stories[string(which)+"/in place"] = func(t *testing.T) {
			f := beginHalf(t, which, "inplace")
			f.eventually(func(g gomega.Gomega) { g.Expect(f.current(g).Status.AvailableReplicas).To(gomega.BeEquivalentTo(3)) })
			before := f.names()
			f.roll("c2")
			f.eventually(func(g gomega.Gomega) {
				updateOne(f.t, f.Client, f.made)
				g.Expect(f.isUpdated()).To(gomega.BeTrue())
			})
			if after := f.names(); !slices.Equal(before, after) {
				t.Errorf("there are %q, want %q", after, before)
			}
			f.isDeleted()
		}
		stories[string(which)] = func(t *testing.T) {
			f := beginHalf(t, which, "scaled")
			f.settles(4, "c1")
			f.change(`{"spec":{"replicas":6}}`)
			f.settles(6, "c1")
			f.change(`{"spec":{"replicas":5}}`)
			f.settles(5, "c1")
			f.scalesDownByName()
			f.change(`{"spec":{"template":{"spec":{"class":{"name":"c2"}}}}}`)
			f.settles(4, "c2")
			f.preserves()
			f.keepsTheFailed()
			f.isDeleted()
		}
	}
	together(t, oneHalfOfEach(t, stories))
}

// scalesDownByName checks that only the marked Machine is deleted.
func (f half) scalesDownByName() {
	f.t.Helper()
	names := f.names()
	now := time.Now().UTC().Format(time.RFC3339)
	f.change(fmt.Sprintf(`{"metadata":{"annotations":{%q:%q,%q:%q}},"spec":{"replicas":4}}`,
		v1alpha1.AnnotationKeyTriggerDeletion, names[2]+"~"+now, v1alpha1.AnnotationKeyLastReplicaChange, now))
	f.settles(4, "c1")
	want := slices.Delete(names, 2, 3)
	if left := f.names(); !slices.Equal(left, want) {
		f.t.Errorf("left are %q, want %q", left, want)
	}
	f.eventually(func(g gomega.Gomega) {
		g.Expect(f.current(g).Annotations).NotTo(gomega.HaveKey(v1alpha1.AnnotationKeyTriggerDeletion))
	})
}

// preserved is the preservation state of a Machine and its node.
func (f half) preserved(g gomega.Gomega, name string) (until *metav1.Time, status corev1.ConditionStatus, protected bool) {
	machine, node := f.machine(name), &corev1.Node{}
	g.Expect(f.Client.Get(f.t.Context(), client.ObjectKeyFromObject(machine), machine)).To(gomega.Succeed())
	g.Expect(f.Client.Get(f.t.Context(), client.ObjectKey{Name: name}, node)).To(gomega.Succeed())
	for _, c := range node.Status.Conditions {
		if c.Type == v1alpha1.NodePreserved {
			status = c.Status
		}
	}
	return machine.Status.CurrentStatus.PreserveExpiryTime, status, node.Annotations[v1alpha1.AnnotationKeyScaleDownDisabledByMCM] != ""
}

// preserves starts and stops the preservation of a Machine.
func (f half) preserves() {
	f.t.Helper()
	name := f.names()[0]
	f.annotate(name, v1alpha1.AnnotationKeyPreserve, "now")
	f.eventually(func(g gomega.Gomega) {
		until, status, protected := f.preserved(g, name)
		g.Expect(until).NotTo(gomega.BeNil())
		g.Expect(status).To(gomega.Equal(corev1.ConditionTrue))
		g.Expect(protected).To(gomega.BeTrue())
	})
	f.annotate(name, v1alpha1.AnnotationKeyPreserve, "")
	f.eventually(func(g gomega.Gomega) {
		until, status, protected := f.preserved(g, name)
		g.Expect(until).To(gomega.BeNil())
		g.Expect(status).To(gomega.Equal(corev1.ConditionFalse))
		g.Expect(protected).To(gomega.BeFalse())
	})
	f.settles(4, "c2")
}

// keepsTheFailed checks that a preserved Failed Machine is kept, and not replaced.
func (f half) keepsTheFailed() {
	f.t.Helper()
	names := f.names()
	f.annotate(names[1], v1alpha1.AnnotationKeyPreserve, "when-failed")
	f.sicken(names[1])
	f.eventually(func(g gomega.Gomega) {
		until, status, protected := f.preserved(g, names[1])
		g.Expect(until).NotTo(gomega.BeNil())
		g.Expect(status).To(gomega.Equal(corev1.ConditionTrue))
		g.Expect(protected).To(gomega.BeTrue())
		got := f.current(g).Status
		g.Expect(got.PreservedFailedReplicas).To(gomega.BeEquivalentTo(1))
		g.Expect(got.AvailableReplicas).To(gomega.BeEquivalentTo(3))
		g.Expect(got.FailedMachines).To(gomega.BeEmpty())
		g.Expect(got.Conditions).To(gomega.ContainElement(gomega.And(gomega.HaveField("Type", v1alpha1.MachineDeploymentAvailable), gomega.HaveField("Status", v1alpha1.ConditionTrue))))
	})
	if now := f.names(); !slices.Equal(now, names) {
		f.t.Errorf("there are %q, want %q", now, names)
	}
}

// isDeleted deletes the MachineDeployment, and waits until nothing remains.
func (f half) isDeleted() {
	f.t.Helper()
	must(f.t, f.Client.Delete(f.t.Context(), f.deployment))
	f.eventually(func(g gomega.Gomega) {
		g.Expect(apierrors.IsNotFound(f.Client.Get(f.t.Context(), client.ObjectKeyFromObject(f.deployment), f.deployment))).To(gomega.BeTrue())
		g.Expect(f.machines()).To(gomega.BeEmpty())
		g.Expect(f.provider.VMs()).To(gomega.BeEmpty(), "VMs")
		nodes := &corev1.NodeList{}
		g.Expect(f.Client.List(f.t.Context(), nodes)).To(gomega.Succeed())
		made, _ := f.provider.did()
		for i := range nodes.Items {
			g.Expect(made).NotTo(gomega.ContainElement(nodes.Items[i].Name), "nodes that are left")
		}
	})
}

// TestTakeover_SwapsProcessesDuringRollout alternates between our process and MCM's. It switches whenever a MachineSet was
// scaled, or a Machine has entered another phase.
func TestTakeover_SwapsProcessesDuringRollout(t *testing.T) {
	tier.All(t)
	t.Parallel()
	stories := map[string]func(*testing.T){}
	for which, other := range otherHalf {
		stories[string(which)+"/rolling"] = func(t *testing.T) {
			f := declare(t, "20-running", "scaled")
			startMCMs(t, f.Env, f.provider, other, 0)
			turns := f.turns(which)
			stop := turns[0]()
			f.settles(4, "c1")
			f.roll("c2")
			f.swaps(stop, turns, 2, func() bool { return f.hasSettled(4, "c2") })
			if made, _ := f.provider.did(); len(made) != 8 {
				t.Errorf("%d VMs were made, want 8: %q", len(made), made)
			}
		}
		stories[string(which)+"/in place"] = func(t *testing.T) {
			f := declare(t, "20-running", "inplace")
			startMCMs(t, f.Env, f.provider, other, 0)
			turns := f.turns(which)
			stop := turns[0]()
			f.eventually(func(g gomega.Gomega) { g.Expect(f.current(g).Status.AvailableReplicas).To(gomega.BeEquivalentTo(3)) })
			before := f.names()
			f.roll("c2")
			f.swaps(stop, turns, 2, func() bool {
				updateOne(f.t, f.Client, f.made)
				return f.isUpdated()
			})
			if made, removed := f.provider.did(); len(made) != 3 || len(removed) > 0 || !slices.Equal(before, f.names()) {
				t.Errorf("VMs made %q, removed %q; Machines %q, now %q", made, removed, before, f.names())
			}
		}
	}
	together(t, oneHalfOfEach(t, stories))
}

// made reports whether a VM with that name was created, and its node.
func (f *fleet) made(name string) bool {
	made, _ := f.provider.did()
	return slices.Contains(made, name)
}

// turns start our process and MCM's.
func (f *fleet) turns(which manager.Half) []func() (stop func()) {
	ours := access(f.t, f.Env, f.gate)
	return []func() func(){
		func() func() {
			return start(f.t, f.Env, f.provider, ours, manager.Config{Settings: manager.Settings{Half: which}})
		},
		func() func() { return startMCMs(f.t, f.Env, f.provider, which, 0) },
	}
}

// swaps switches at each moment until everything is complete, and at least the given number of times. If
// everything completes earlier, it switches once more.
func (f *fleet) swaps(stop func(), turns []func() func(), least int, done func() bool) {
	f.t.Helper()
	swaps := 0
	for ; swaps == 0 || !done(); swaps++ {
		was := f.moment()
		f.eventually(func(g gomega.Gomega) {
			g.Expect(done() || !maps.Equal(was, f.moment())).To(gomega.BeTrue(), "%v", was)
		})
		stop()
		stop = turns[(swaps+1)%len(turns)]()
	}
	f.t.Logf("%d swaps", swaps)
	if swaps < least {
		f.t.Errorf("it was swapped %d times", swaps)
	}
}

// isUpdated reports whether all Machines are Running and belong to the newest MachineSet, and no node has a trace
// of the update.
func (f *fleet) isUpdated() bool {
	f.t.Helper()
	deployment, sets := f.deployment.DeepCopy(), &v1alpha1.MachineSetList{}
	must(f.t, f.Client.Get(f.t.Context(), client.ObjectKeyFromObject(deployment), deployment))
	must(f.t, f.Client.List(f.t.Context(), sets, client.InNamespace(f.Namespace)))
	newest := state{sets: sets.Items}.newest(deployment.Name)
	status := deployment.Status
	if newest == nil || newest.Spec.Template.Spec.Class.Name != "c2" || status.UpdatedReplicas != 3 || status.Replicas != 3 || status.AvailableReplicas != 3 {
		return false
	}
	machines := f.machines()
	return !slices.ContainsFunc(machines, func(machine v1alpha1.Machine) bool {
		node := &corev1.Node{}
		must(f.t, f.Client.Get(f.t.Context(), client.ObjectKey{Name: machine.Labels[v1alpha1.NodeLabelKey]}, node))
		return machine.Status.CurrentStatus.Phase != v1alpha1.MachineRunning || !metav1.IsControlledBy(&machine, newest) ||
			inplaceupdate.Labelled(node) || node.Spec.Unschedulable || inplaceupdate.Moved(&machine)
	})
}

// hasSettled reports whether the MachineDeployment is settled.
func (f *fleet) hasSettled(replicas int, class string) bool {
	return gomega.NewGomega(func(string, ...int) {}).Eventually(func(g gomega.Gomega) { f.settled(g, replicas, class) }).
		WithTimeout(time.Millisecond).Should(gomega.Succeed())
}

// moment is the size of each MachineSet, the phase of each Machine, and the progress of the updates of their
// nodes.
func (f *fleet) moment() map[string]string {
	f.t.Helper()
	moment := map[string]string{}
	sets := &v1alpha1.MachineSetList{}
	must(f.t, f.Client.List(f.t.Context(), sets, client.InNamespace(f.Namespace)))
	for i := range sets.Items {
		moment[sets.Items[i].Name] = fmt.Sprint(sets.Items[i].Spec.Replicas)
	}
	machines := f.machines()
	for i := range machines {
		moment[machines[i].Name] = string(machines[i].Status.CurrentStatus.Phase) + inplaceupdate.State(&machines[i])
	}
	return moment
}
