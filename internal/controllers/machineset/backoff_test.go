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

// fleet plays the machine controller and time, beside a set.
type fleet struct {
	*server
	controller *Controller
}

func newFleet(objects ...client.Object) *fleet {
	s := newServer(objects...)
	return &fleet{s, s.newController()}
}

// step makes a pass, and lets the cache catch up. New Machines are as old as the clock says.
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

// fate brings all Machines that are not leaving to a phase, as the last step of an operation.
func (f *fleet) fate(phase v1alpha1.MachinePhase, operation v1alpha1.MachineOperationType) {
	for _, m := range f.all() {
		if counts.Active(m) {
			m.Status.CurrentStatus.Phase, m.Status.LastOperation.Type = phase, operation
			must(f.live.Update(testContext, m))
		}
	}
	f.catchUp()
}

// bury ends all deletions.
func (f *fleet) bury() {
	for name, m := range f.all() {
		if !m.DeletionTimestamp.IsZero() {
			f.vanish(name)
		}
	}
	f.catchUp()
}

func (f *fleet) wait(d time.Duration) { f.clock.SetTime(f.clock.Now().Add(d)) }

// replacedAfter lets the Machines fail, and returns how long it takes until there are as
// many as wanted again.
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
	t.Fatalf("they are not replaced")
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

func TestMachinesThatKeepFailingAreReplacedEverMoreSlowly(t *testing.T) {
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
	const sentence = "BackOff: Machines failed before they joined, 3 times in a row: the next are made in 10s at the earliest"
	if text := strings.Join(f.events.lines, "\n"); strings.Count(text, sentence) != 1 || strings.Count(text, "BackOff: ") != 7 {
		t.Errorf("events:\n%s", text)
	}
}

// TestABackOffSaysWhy: a set that waits shows no Machine that could tell.
func TestABackOffSaysWhy(t *testing.T) {
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
	last := regexp.MustCompile(`BackOff: .* at the earliest\. The last was (\S+): Machine (\S+) failed to join the cluster in 20 minutes\.`)
	said := last.FindAllStringSubmatch(strings.Join(f.events.lines, "\n"), -1)
	if len(said) != 1 || said[0][1] != said[0][2] {
		t.Errorf("events:\n%s", strings.Join(f.events.lines, "\n"))
	}
}

func TestWhatEndsAStreak(t *testing.T) {
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
				t.Errorf("the next ones are made after %s", got)
			}
		})
	}
}

// TestMachinesThatWereOfUseAreReplacedAtOnce: what fails after it joined says nothing about
// its class.
func TestMachinesThatWereOfUseAreReplacedAtOnce(t *testing.T) {
	f := newFleet(newSet(2))
	f.step(t)
	for range 5 {
		if got := f.replacedAfter(t, v1alpha1.MachineOperationHealthCheck); got != 0 {
			t.Fatalf("replaced after %s", got)
		}
	}
}

func TestAChangedClassWakesTheSetsThatWaitForIt(t *testing.T) {
	f := newFleet(newSet(1))
	f.step(t)
	wakes := func(namespace, name string) int {
		return len(f.controller.setsInBackOff(testContext, &v1alpha1.MachineClass{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}))
	}
	if wakes(fixture.Namespace, fixture.Class) != 0 {
		t.Error("a set that does not wait is woken")
	}
	f.replacedAfter(t, v1alpha1.MachineOperationCreate)
	if wakes(fixture.Namespace, fixture.Class) != 1 || wakes(fixture.Namespace, "other") != 0 || wakes("elsewhere", fixture.Class) != 0 {
		t.Error("the wrong sets are woken")
	}
}

// TestWhatFailsInABackOffGoesAtOnce: to remove it costs the provider nothing, and it may hold
// what others need.
func TestWhatFailsInABackOffGoesAtOnce(t *testing.T) {
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
		t.Fatalf("the set does not back off: %d machines, next look after %s", f.activeCount(), wait)
	}
	fail(f.all()[all[1]])
	again := f.step(t).RequeueAfter
	if n := f.activeCount(); n != 0 {
		t.Errorf("%d machines are left, though the last one failed", n)
	}
	if again != wait {
		t.Errorf("the delay was %s, and is %s since another machine of the same round failed", wait, again)
	}
}

// TestOneBatchIsOneFailure: the API server's clock, by which Machines were made, need not be that of
// this process.
func TestOneBatchIsOneFailure(t *testing.T) {
	for reason, skew := range map[string]time.Duration{"alike": 0, "the API server's is ahead": 2 * time.Minute, "it is behind": -2 * time.Minute} {
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
					t.Errorf("%d failures are counted, want %d", got, rounds)
				}
			}
			fails(0, machines(3, failed, age(time.Minute-skew))...)
			is(1)
			fails(time.Minute, machines(3, failed, age(-10*time.Second-skew))...)
			is(2)
			if known.until(machines(1, age(time.Minute-skew)), of).IsZero() {
				t.Error("a machine that was made before the first failure ends the streak")
			}
			if !known.until(machines(1, age(-10*time.Second-skew)), of).IsZero() {
				t.Error("a machine that was made since the first failure, and came up, does not end the streak")
			}
		})
	}
}

// TestMachinesOfOneRoundFailOneByOne: they were made in different seconds, and still count once.
func TestMachinesOfOneRoundFailOneByOne(t *testing.T) {
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
