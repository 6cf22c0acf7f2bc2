package machineset

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/counts"
	"github.com/millwright-dev/millwright/internal/pool/scale"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

// fleet is a set with a simulated machine controller and clock.
type fleet struct {
	*server
	controller *Controller
}

func newFleet(objects ...client.Object) *fleet {
	s := newServer(objects...)
	return &fleet{s, s.newController()}
}

// step runs a pass and then updates the cache. It sets the creation time of new Machines.
func (f *fleet) step(t fataler) ctrl.Result {
	t.Helper()
	result, err := f.controller.Reconcile(testContext, request)
	if err != nil {
		t.Fatalf("reconciling: %v", err)
	}
	for _, m := range f.all() {
		if m.CreationTimestamp.IsZero() {
			m.CreationTimestamp = metav1.NewTime(f.clock.Now())
			must(f.live.Update(testContext, m))
		}
	}
	f.catchUp()
	return result
}

// fate sets the phase and the type of the last operation of all Machines that are not being deleted.
func (f *fleet) fate(phase v1alpha1.MachinePhase, operation v1alpha1.MachineOperationType) {
	for _, m := range f.all() {
		if counts.Active(m) {
			m.Status.CurrentStatus.Phase, m.Status.LastOperation.Type = phase, operation
			must(f.live.Update(testContext, m))
		}
	}
	f.catchUp()
}

// bury completes all deletions.
func (f *fleet) bury() {
	for name, m := range f.all() {
		if !m.DeletionTimestamp.IsZero() {
			f.vanish(name)
		}
	}
	f.catchUp()
}

func (f *fleet) wait(d time.Duration) { f.clock.SetTime(f.clock.Now().Add(d)) }

// replacedAfter lets the Machines fail, and returns the time until the desired number of Machines exists again.
func (f *fleet) replacedAfter(t fataler, operation v1alpha1.MachineOperationType) time.Duration {
	t.Helper()
	f.wait(time.Minute)
	f.fate(v1alpha1.MachineFailed, operation)
	from := f.clock.Now()
	for range 10 {
		result := f.step(t)
		f.bury()
		if f.activeCount() == int(f.set().Spec.Replicas) && f.allNew(from) {
			return f.clock.Now().Sub(from)
		}
		f.wait(result.RequeueAfter)
	}
	t.Fatalf("the machines were not replaced")
	return 0
}

func (f *fleet) allNew(since time.Time) bool {
	for _, m := range f.all() {
		if m.CreationTimestamp.Time.Before(since) {
			return false
		}
	}
	return true
}

func TestBackOff_GrowsWithFailures(t *testing.T) {
	f := newFleet(newSet(3))
	f.step(t)
	var got []time.Duration
	for range 8 {
		got = append(got, f.replacedAfter(t, v1alpha1.MachineOperationCreate))
	}
	want := []time.Duration{0, 5, 10, 20, 40, 80, 160, 300}
	for i := range want {
		want[i] *= time.Second
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("want - got +\n%s", diff)
	}
	const sentence = "BackOff: Machines failed before they joined, 3 times in a row: the next are created in 10s at the earliest"
	if text := strings.Join(f.events.lines, "\n"); strings.Count(text, sentence) != 1 || strings.Count(text, "BackOff: ") != 7 {
		t.Errorf("events:\n%s", text)
	}
}

// TestBackOff_EventHasLastFailure checks that the event about the back-off contains the last failure, since no Machine shows
// it during the back-off.
func TestBackOff_EventHasLastFailure(t *testing.T) {
	f := newFleet(newSet(1))
	f.step(t)
	for range 2 {
		f.wait(time.Minute)
		f.fate(v1alpha1.MachineFailed, v1alpha1.MachineOperationCreate)
		for name, m := range f.all() {
			m.Status.LastOperation.Description = "Machine " + name + " failed to join the cluster in 20 minutes."
			must(f.live.Update(testContext, m))
		}
		f.catchUp()
		f.step(t)
		f.bury()
		f.step(t)
	}
	last := regexp.MustCompile(`BackOff: .* at the earliest\. The last to fail was (\S+): Machine (\S+) failed to join the cluster in 20 minutes\.`)
	found := last.FindAllStringSubmatch(strings.Join(f.events.lines, "\n"), -1)
	if len(found) != 1 || found[0][1] != found[0][2] {
		t.Errorf("events:\n%s", strings.Join(f.events.lines, "\n"))
	}
}

func TestBackOff_IsReset(t *testing.T) {
	class := func(generation int64) *v1alpha1.MachineClass {
		return &v1alpha1.MachineClass{ObjectMeta: metav1.ObjectMeta{Namespace: fixture.Namespace, Name: fixture.Class, UID: "class", Generation: generation}}
	}
	for reason, test := range map[string]struct {
		do   func(*fleet)
		slow bool
	}{
		"nothing": {do: func(*fleet) {}, slow: true},
		"a machine came up": {do: func(f *fleet) {
			f.wait(time.Minute)
			f.fate(v1alpha1.MachineRunning, v1alpha1.MachineOperationCreate)
			f.step(t)
		}},
		"another generation of the set": {do: func(f *fleet) { f.scale(2); f.step(t) }},
		"another generation of the class": {do: func(f *fleet) {
			must(f.live.Delete(testContext, class(1)))
			must(f.live.Create(testContext, class(2)))
		}},
		"a restart": {do: func(f *fleet) { f.controller = f.newController() }},
	} {
		t.Run(reason, func(t *testing.T) {
			f := newFleet(newSet(1), class(1))
			f.step(t)
			for range 4 {
				f.replacedAfter(t, v1alpha1.MachineOperationCreate)
			}
			test.do(f)
			if got := f.replacedAfter(t, v1alpha1.MachineOperationCreate); (got > 0) != test.slow {
				t.Errorf("replacements are created after %s", got)
			}
		})
	}
}

// TestBackOff_IgnoresJoinedMachines checks that Machines that joined are replaced immediately when they
// fail, since their class is not the cause.
func TestBackOff_IgnoresJoinedMachines(t *testing.T) {
	f := newFleet(newSet(2))
	f.step(t)
	for range 5 {
		if got := f.replacedAfter(t, v1alpha1.MachineOperationHealthCheck); got != 0 {
			t.Fatalf("replaced after %s", got)
		}
	}
}

func TestBackOff_ChangedClassTriggersPass(t *testing.T) {
	f := newFleet(newSet(1))
	f.step(t)
	wakes := func(namespace, name string) int {
		return len(f.controller.setsInBackOff(testContext, &v1alpha1.MachineClass{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}))
	}
	if wakes(fixture.Namespace, fixture.Class) != 0 {
		t.Error("a set without back-off was enqueued")
	}
	f.replacedAfter(t, v1alpha1.MachineOperationCreate)
	if wakes(fixture.Namespace, fixture.Class) != 1 || wakes(fixture.Namespace, "other") != 0 || wakes("elsewhere", fixture.Class) != 0 {
		t.Error("the wrong sets were enqueued")
	}
}

// TestBackOff_DeletesFailedMachinesImmediately checks that a Machine that fails during the back-off is deleted immediately,
// since it may occupy capacity that others need.
func TestBackOff_DeletesFailedMachinesImmediately(t *testing.T) {
	f := newFleet(newSet(2))
	f.step(t)
	for range 4 {
		f.replacedAfter(t, v1alpha1.MachineOperationCreate)
	}
	fail := func(m *v1alpha1.Machine) {
		m.Status.CurrentStatus.Phase, m.Status.LastOperation.Type = v1alpha1.MachineFailed, v1alpha1.MachineOperationCreate
		must(f.live.Update(testContext, m))
		f.catchUp()
	}
	f.wait(time.Minute)
	all := slices.Sorted(maps.Keys(f.all()))
	fail(f.all()[all[0]])
	f.step(t)
	f.bury()
	wait := f.step(t).RequeueAfter
	if wait == 0 || f.activeCount() != 1 {
		t.Fatalf("the set does not back off: %d machines, next pass in %s", f.activeCount(), wait)
	}
	fail(f.all()[all[1]])
	again := f.step(t).RequeueAfter
	if n := f.activeCount(); n != 0 {
		t.Errorf("%d machines remain, want none", n)
	}
	if again != wait {
		t.Errorf("the delay changed from %s to %s after another machine of the same round failed", wait, again)
	}
}

// TestBackOff_CountsBatchOnce checks rounds with different clocks, since the API server's clock, which sets creation
// times, may differ from that of this process.
func TestBackOff_CountsBatchOnce(t *testing.T) {
	for reason, skew := range map[string]time.Duration{"equal clocks": 0, "API server ahead": 2 * time.Minute, "API server behind": -2 * time.Minute} {
		t.Run(reason, func(t *testing.T) {
			var known failures
			of := version{set: "a", class: "b"}
			fails := func(at time.Duration, made ...*v1alpha1.Machine) {
				for i, m := range made {
					f := scale.Facts{Set: newSet(3), Now: noon.Add(at + time.Duration(i)*time.Second), Owned: made[i:]}
					known.count(f, of, []scale.Operation{{Action: scale.Delete, Machine: m}})
				}
			}
			failed := func(m *v1alpha1.Machine) {
				m.Status.CurrentStatus.Phase, m.Status.LastOperation.Type = v1alpha1.MachineFailed, v1alpha1.MachineOperationCreate
			}
			is := func(rounds int) {
				t.Helper()
				if got := known.rounds; got != rounds {
					t.Errorf("%d rounds, want %d", got, rounds)
				}
			}
			fails(0, machines(3, failed, age(time.Minute-skew))...)
			is(1)
			fails(time.Minute, machines(3, failed, age(-10*time.Second-skew))...)
			is(2)
			if known.until(machines(1, age(time.Minute-skew)), of).IsZero() {
				t.Error("a machine that was created before the first failure reset the count")
			}
			if !known.until(machines(1, age(-10*time.Second-skew)), of).IsZero() {
				t.Error("a machine that was created after the first failure and became available did not reset the count")
			}
		})
	}
}

// TestBackOff_CountsRoundOnce checks that Machines of one round count once, even if they were created in
// different seconds.
func TestBackOff_CountsRoundOnce(t *testing.T) {
	failed := func(m *v1alpha1.Machine) {
		m.Status.CurrentStatus.Phase, m.Status.LastOperation.Type = v1alpha1.MachineFailed, v1alpha1.MachineOperationCreate
	}
	f := scale.Facts{Set: newSet(2), Owned: []*v1alpha1.Machine{machine("a", failed, age(2*time.Minute)), machine("b", failed, age(time.Minute))}, Now: noon}
	var known failures
	for _, m := range f.Owned {
		known.count(f, version{}, []scale.Operation{{Action: scale.Delete, Machine: m}})
		if known.rounds != 1 {
			t.Errorf("after %s: %d rounds", m.Name, known.rounds)
		}
	}
}
