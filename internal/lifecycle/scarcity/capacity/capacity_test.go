package capacity

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
)

const (
	after  = 10 * time.Second
	memory = time.Minute
)

func newMemory() (*Memory, *testingclock.FakeClock) {
	clock := testingclock.NewFakeClock(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
	return New(Options{After: after, Memory: memory, Clock: clock}), clock
}

func newClass(name string) *v1alpha1.MachineClass {
	return &v1alpha1.MachineClass{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: name, UID: types.UID(name), Generation: 1}}
}

func newMachine(name string) *v1alpha1.Machine {
	return &v1alpha1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: name, UID: types.UID(name)}}
}

// ask requests a Machine and checks the outcome.
func ask(t *testing.T, of instance.Capacity, code codes.Code, want instance.Fallback, wantAgain time.Duration) {
	t.Helper()
	of.Asking()
	if fallback, again := of.Asked(code); fallback != want || again != wantAgain {
		t.Errorf("after %v: %v, again in %v, want %v and %v", code, fallback, again, want, wantAgain)
	}
}

// TestMemory_FallsBackToNextClass checks that another class is tried after a short time, as long as there is one.
func TestMemory_FallsBackToNextClass(t *testing.T) {
	m, clock := newMemory()
	a, b := newClass("a"), newClass("b")
	withA := m.For(newMachine("m"), a, []*v1alpha1.MachineClass{b})
	ask(t, withA, codes.ResourceExhausted, instance.FallsBackLater, after)
	clock.Step(after)
	ask(t, withA, codes.ResourceExhausted, instance.FallsBack, 0)
	ask(t, m.For(newMachine("o"), newClass("alone"), nil), codes.ResourceExhausted, instance.NoFallback, 0)
	withB := m.For(newMachine("m"), b, []*v1alpha1.MachineClass{a})
	ask(t, withB, codes.ResourceExhausted, instance.NoFallback, memory)
	clock.Step(memory)
	ask(t, withB, codes.ResourceExhausted, instance.FallsBack, 0)
}

// TestMemory_OneMachineTriesClass checks that only one Machine tries a class that had no capacity, and that the others try it
// if that Machine gets its VM.
func TestMemory_OneMachineTriesClass(t *testing.T) {
	m, clock := newMemory()
	a, b := newClass("a"), newClass("b")
	for range 2 {
		if !m.Claim(a) {
			t.Fatal("a class without a recorded failure is not tried")
		}
	}
	asks := m.For(newMachine("m"), a, []*v1alpha1.MachineClass{b})
	ask(t, asks, codes.ResourceExhausted, instance.FallsBackLater, after)
	if m.Claim(a) || !m.Out(a) || m.Next([]*v1alpha1.MachineClass{a}) != memory {
		t.Error("a class without capacity is retried")
	}
	clock.Step(memory)
	if !m.Claim(a) || m.Claim(a) {
		t.Error("the class is not tried by exactly one machine")
	}
	clock.Step(probe)
	if !m.Claim(a) {
		t.Error("no other machine tries the class if the first one does not")
	}
	ask(t, asks, codes.OK, instance.NoFallback, 0)
	for range 2 {
		if !m.Claim(a) || m.Out(a) {
			t.Error("a class with capacity is not tried by all machines")
		}
	}
	if !m.Returned(a) || m.Returned(a) || m.Returned(b) {
		t.Error("the end of the shortage is not reported exactly once")
	}
}

// TestMemory_KnownResultStopsWait checks that no Machine waits for a result that is already known, even
// if the memory is shorter than that wait.
func TestMemory_KnownResultStopsWait(t *testing.T) {
	clock := testingclock.NewFakeClock(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
	m := New(Options{Memory: time.Second, Clock: clock})
	a := newClass("a")
	asks := m.For(newMachine("m"), a, nil)
	ask(t, asks, codes.ResourceExhausted, instance.NoFallback, 0)
	clock.Step(time.Second)
	if !m.Claim(a) || m.Claim(a) {
		t.Error("the class is not tried by exactly one machine")
	}
	ask(t, asks, codes.ResourceExhausted, instance.NoFallback, 0)
	if m.Claim(a) {
		t.Error("the class is retried immediately")
	}
	clock.Step(time.Second)
	if !m.Claim(a) {
		t.Error("the others wait although the result is known")
	}
}

// TestMemory_EditedClassIsTried checks that an edited class is tried immediately.
func TestMemory_EditedClassIsTried(t *testing.T) {
	m, _ := newMemory()
	a := newClass("a")
	ask(t, m.For(newMachine("m"), a, nil), codes.ResourceExhausted, instance.NoFallback, 0)
	edited := a.DeepCopy()
	edited.Generation++
	if !m.Out(a) || m.Out(edited) {
		t.Error("the next version of a class counts as exhausted, or this one does not")
	}
}

// TestMemory_SkipsClassWithoutCapacity checks when a class without capacity is skipped, and when no VM can exist for the
// Machine.
func TestMemory_SkipsClassWithoutCapacity(t *testing.T) {
	a, b := newClass("a"), newClass("b")
	for name, test := range map[string]struct {
		before           func(m *Memory, of instance.Capacity)
		spent, untouched bool
	}{
		"the machine was just created": {func(m *Memory, _ instance.Capacity) { m.Untouched(newMachine("m"), a) }, true, true},
		"nothing is known":             {func(*Memory, instance.Capacity) {}, false, false},
		"the response was lost":        {func(_ *Memory, of instance.Capacity) { of.Asking(); of.Asked(codes.DeadlineExceeded) }, false, false},
		"the creation failed":          {func(_ *Memory, of instance.Capacity) { of.Asking(); of.Asked(codes.ResourceExhausted) }, true, false},
		"tried before the machine was seen": {func(m *Memory, of instance.Capacity) {
			of.Asking()
			m.Untouched(newMachine("m"), a)
		}, false, false},
		"the machine is forgotten": {func(m *Memory, of instance.Capacity) {
			m.Untouched(newMachine("m"), a)
			m.Forget(types.NamespacedName{Namespace: "n", Name: "m"})
		}, false, false},
		"another machine of that name": {func(m *Memory, _ instance.Capacity) {
			was := newMachine("m")
			was.UID = "before"
			m.Untouched(was, a)
		}, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			m, clock := newMemory()
			ask(t, m.For(newMachine("other"), a, []*v1alpha1.MachineClass{b}), codes.ResourceExhausted, instance.FallsBackLater, after)
			of := m.For(newMachine("m"), a, []*v1alpha1.MachineClass{b})
			test.before(m, of)
			if spent, _ := of.Spent(); spent {
				t.Error("another class is chosen too early")
			}
			clock.Step(after)
			if spent, untouched := of.Spent(); spent != test.spent || untouched != test.untouched {
				t.Errorf("spent %v, untouched %v, want %v and %v", spent, untouched, test.spent, test.untouched)
			}
			if spent, _ := m.For(newMachine("m"), a, nil).Spent(); spent {
				t.Error("the only class is not tried")
			}
		})
	}
}
