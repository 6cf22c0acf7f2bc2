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

// engineRetry is when the engine asks again by itself after a creation that failed for want of capacity.
const engineRetry = time.Minute

// pool is a pool of Machines that get their VMs from classes whose capacity comes and goes.
type pool struct {
	*testing.T
	memory   *Memory
	clock    *testingclock.FakeClock
	classes  []*v1alpha1.MachineClass
	room     []int // of each class
	machines []*waiting
}

// waiting is a Machine that may not have a VM yet.
type waiting struct {
	machine *v1alpha1.Machine
	class   int
	made    bool
	due     time.Time
	// asks are when the provider was asked for it.
	asks []time.Time
}

func newPool(t *testing.T, machines, classes int) *pool {
	t.Helper()
	p := &pool{T: t, room: make([]int, classes)}
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

// restart forgets what the process knew: all Machines are asked about at once.
func (p *pool) restart() {
	p.memory = New(p.memory.opts)
	for _, w := range p.machines {
		w.due = p.clock.Now()
	}
}

// others are the classes that a Machine may have instead, in their order.
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
		if p.room[w.class] > 0 {
			p.room[w.class]--
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

// second is one second of all Machines. A Machine that falls back goes on at once.
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

// TestModel: capacity comes and goes, and processes restart. Nobody is asked without end; as soon as any class has
// capacity for good, every Machine gets a VM; and a new one gets the first choice once that has capacity.
func TestModel(t *testing.T) {
	const machines, classes = 6, 3
	// A class is asked after it was forgotten, and while another Machine's answer is awaited.
	const soon = memory + probe + after + engineRetry
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 0))
		p := newPool(t, machines, classes)
		for range 400 {
			switch random.IntN(40) {
			case 0:
				p.room[random.IntN(classes)] = random.IntN(3)
			case 1:
				p.room[random.IntN(classes)] = 0
			case 2:
				if random.IntN(10) == 0 {
					p.restart()
				}
			}
			p.second()
		}
		p.restart()
		clear(p.room)
		for range 300 { // none has capacity, and nothing disturbs them
			p.second()
		}
		for _, w := range p.machines {
			p.patient(seed, w)
		}
		p.room[random.IntN(classes)] = machines
		for range int(soon / time.Second) {
			p.second()
		}
		if left := p.left(); left > 0 {
			t.Fatalf("seed %d: %d Machines have no VM after %v", seed, left, soon)
		}
		p.room[0] = 1
		for range int((memory + probe) / time.Second) {
			p.second()
		}
		last := p.add()
		for range int(soon / time.Second) {
			p.second()
		}
		if !last.made || last.class != 0 {
			t.Fatalf("seed %d: a new Machine has the class %d (made: %t), and the first has capacity", seed, last.class, last.made)
		}
	}
}

// patient checks that the provider was asked for a Machine no more than once for each class in the time that a
// class is remembered, but for the first time.
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
