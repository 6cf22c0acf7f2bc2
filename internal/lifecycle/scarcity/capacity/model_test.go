package capacity

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	testingclock "k8s.io/utils/clock/testing"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
)

// engineRetry is the time after which the engine retries a creation that failed for lack of capacity.
const engineRetry = time.Minute

// pool is a pool of Machines that get their VMs from classes whose capacity changes.
type pool struct {
	*testing.T
	memory   *Memory
	clock    *testingclock.FakeClock
	classes  []*v1alpha1.MachineClass
	free     []int // by class
	machines []*waiting
}

// waiting is a Machine that may not have a VM yet.
type waiting struct {
	machine *v1alpha1.Machine
	class   int
	made    bool
	due     time.Time
	// asks holds the times at which the provider was asked for the VM.
	asks []time.Time
}

func newPool(t *testing.T, machines, classes int) *pool {
	t.Helper()
	p := &pool{T: t, free: make([]int, classes)}
	p.memory, p.clock = newMemory()
	for i := range classes {
		p.classes = append(p.classes, newClass(fmt.Sprint(i)))
	}
	for range machines {
		p.add()
	}
	return p
}

func (p *pool) add() *waiting {
	w := &waiting{machine: newMachine(fmt.Sprint("m", len(p.machines))), due: p.clock.Now()}
	p.memory.Untouched(w.machine, p.classes[0])
	p.machines = append(p.machines, w)
	return w
}

// restart clears the memory, as a new process does. All Machines are then handled immediately.
func (p *pool) restart() {
	p.memory = New(p.memory.opts)
	for _, w := range p.machines {
		w.due = p.clock.Now()
	}
}

// others returns the classes that a Machine may use instead, in order.
func (p *pool) others(w *waiting) []*v1alpha1.MachineClass {
	var others []*v1alpha1.MachineClass
	for i, class := range p.classes {
		if i != w.class {
			others = append(others, class)
		}
	}
	return others
}

// pass does for a Machine what the controller and the engine do.
func (p *pool) pass(w *waiting) {
	now := p.clock.Now()
	if w.made || now.Before(w.due) {
		return
	}
	of := p.memory.For(w.machine, p.classes[w.class], p.others(w))
	w.due = now.Add(engineRetry)
	fallback, again := instance.FallsBack, time.Duration(0)
	if spent, _ := of.Spent(); !spent {
		of.Asking()
		w.asks = append(w.asks, now)
		if p.free[w.class] > 0 {
			p.free[w.class]--
			of.Asked(codes.OK)
			w.made = true
			return
		}
		fallback, again = of.Asked(codes.ResourceExhausted)
	}
	if fallback == instance.FallsBack {
		for i, class := range p.classes {
			if i != w.class && p.memory.Claim(class) {
				w.class, w.due = i, now
				p.memory.Untouched(w.machine, class)
				return
			}
		}
		again = p.memory.Next(p.others(w))
	}
	if again > 0 {
		w.due = now.Add(min(engineRetry, again))
	}
}

// second advances all Machines by one second. A Machine that falls back continues immediately.
func (p *pool) second() {
	for range len(p.classes) {
		for _, w := range p.machines {
			p.pass(w)
		}
	}
	p.clock.Step(time.Second)
}

func (p *pool) left() int {
	left := 0
	for _, w := range p.machines {
		if !w.made {
			left++
		}
	}
	return left
}

// TestModel_KeepsInvariants lets capacity come and go and restarts processes. It checks that requests stay bounded, that every
// Machine gets a VM once some class keeps its capacity, and that a new Machine gets the first class once that
// has capacity.
func TestModel_KeepsInvariants(t *testing.T) {
	const machines, classes = 6, 3
	// A class is tried after it was forgotten, and again while the result for another Machine is pending.
	const soon = memory + probe + after + engineRetry
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 0))
		p := newPool(t, machines, classes)
		for range 400 {
			switch random.IntN(40) {
			case 0:
				p.free[random.IntN(classes)] = random.IntN(3)
			case 1:
				p.free[random.IntN(classes)] = 0
			case 2:
				if random.IntN(10) == 0 {
					p.restart()
				}
			}
			p.second()
		}
		p.restart()
		clear(p.free)
		for range 300 { // no class has capacity, and nothing else changes
			p.second()
		}
		for _, w := range p.machines {
			p.patient(seed, w)
		}
		p.free[random.IntN(classes)] = machines
		for range int(soon / time.Second) {
			p.second()
		}
		if left := p.left(); left > 0 {
			t.Fatalf("seed %d: %d Machines have no VM after %v", seed, left, soon)
		}
		p.free[0] = 1
		for range int((memory + probe) / time.Second) {
			p.second()
		}
		last := p.add()
		for range int(soon / time.Second) {
			p.second()
		}
		if !last.made || last.class != 0 {
			t.Fatalf("seed %d: a new Machine has the class %d (created: %t) although the first has capacity", seed, last.class, last.made)
		}
	}
}

// patient checks that the provider was asked for a Machine at most once per class within the time that a
// failure is remembered, not counting the first request.
func (p *pool) patient(seed uint64, w *waiting) {
	p.Helper()
	since := p.clock.Now().Add(-300*time.Second + after + time.Second)
	for i, begin := range w.asks {
		if begin.Before(since) {
			continue
		}
		within := 0
		for _, ask := range w.asks[i:] {
			if ask.Sub(begin) < memory {
				within++
			}
		}
		if within > len(p.classes) {
			p.Fatalf("seed %d: the provider was asked %d times for %s within %v", seed, within, w.machine.Name, memory)
		}
	}
}
