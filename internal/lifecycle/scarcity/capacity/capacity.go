// Package capacity remembers which classes have no capacity left, so that many Machines need not all ask
// the provider.
//
// What is remembered delays work or keeps it from being done twice, and is never what decides whether an
// instance exists. Losing it costs time.
package capacity

import (
	"cmp"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/codes"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
)

// The defaults of the flags.
const (
	DefaultAfter  = 5 * time.Second
	DefaultMemory = 5 * time.Minute
)

// probe is how long the others wait for the Machine that asks first whether a class has capacity again.
const probe = 30 * time.Second

// Options configure a Memory.
type Options struct {
	// After is for how long a class has to be without capacity until another one is taken. Zero is at
	// once.
	After time.Duration
	// Memory is for how long a class counts as having no capacity after it was asked. Zero means
	// DefaultMemory.
	Memory time.Duration
	Clock  clock.PassiveClock
}

// Memory is what is known of the capacity of classes. Make one with New.
type Memory struct {
	opts Options

	mu       sync.Mutex
	classes  map[types.NamespacedName]*state
	machines map[types.NamespacedName]*machine
}

// New makes a Memory.
func New(opts Options) *Memory {
	opts.Memory = cmp.Or(opts.Memory, DefaultMemory)
	return &Memory{opts: opts, classes: map[types.NamespacedName]*state{}, machines: map[types.NamespacedName]*machine{}}
}

// Class is a version of a class, whose zone is a part of it. Another version may have capacity.
type Class struct {
	types.NamespacedName
	UID        types.UID
	Generation int64
}

// Of returns what is remembered of a class by.
func Of(class *v1alpha1.MachineClass) Class {
	return Class{types.NamespacedName{Namespace: class.Namespace, Name: class.Name}, class.UID, class.Generation}
}

// state is a class that had no capacity when it was asked.
type state struct {
	class Class
	// since is when it was found so first, until is when it may be asked again. Probed is until when the
	// others wait for the Machine that does.
	since, until, probed time.Time
	// back reports that it has capacity again.
	back bool
}

// machine is a Machine without an instance.
type machine struct {
	uid   types.UID
	class Class
	asked asked
}

type asked int

const (
	// never: the class was not asked for the Machine, in no process.
	never asked = iota
	// perhaps: it was, and may have made something.
	perhaps
	// inVain: the last answer was that it has no capacity.
	inVain
)

// out returns what is known of a class that has no capacity; nil if it may have. The lock is held.
func (m *Memory) out(class Class) *state {
	known := m.classes[class.NamespacedName]
	if known == nil || known.class != class || known.back || !m.opts.Clock.Now().Before(known.free()) {
		return nil
	}
	return known
}

// free is when others than the Machine that asks first may have the class.
func (s *state) free() time.Time {
	if s.probed.After(s.until) {
		return s.probed
	}
	return s.until
}

// Out reports whether a class is known to have no capacity.
func (m *Memory) Out(class *v1alpha1.MachineClass) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.out(Of(class)) != nil
}

// Claim reports whether a class may be asked for a Machine. If it was without capacity before, one Machine
// asks, and the others wait for its answer for half a minute.
func (m *Memory) Claim(class *v1alpha1.MachineClass) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.out(Of(class)) != nil {
		return false
	}
	if known := m.classes[keyOf(class)]; known != nil && known.class == Of(class) && !known.back {
		known.probed = m.opts.Clock.Now().Add(probe)
	}
	return true
}

// Returned reports, once, that a class has capacity again.
func (m *Memory) Returned(class *v1alpha1.MachineClass) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	known := m.classes[keyOf(class)]
	if known == nil || !known.back {
		return false
	}
	delete(m.classes, keyOf(class))
	return true
}

// Next returns in which time one of some classes may be asked again; zero if there are none.
func (m *Memory) Next(classes []*v1alpha1.MachineClass) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.next(classes)
}

func (m *Memory) next(classes []*v1alpha1.MachineClass) time.Duration {
	var soonest time.Duration
	for _, class := range classes {
		after := time.Millisecond
		if known := m.out(Of(class)); known != nil {
			after = max(after, known.free().Sub(m.opts.Clock.Now()))
		}
		if soonest == 0 || after < soonest {
			soonest = after
		}
	}
	return soonest
}

// Untouched notes that nothing was asked of the class of a Machine yet: it was just created, or has just
// got that class. If it was asked since, that stays known.
func (m *Memory) Untouched(of *v1alpha1.Machine, class *v1alpha1.MachineClass) {
	m.mu.Lock()
	defer m.mu.Unlock()
	key := types.NamespacedName{Namespace: of.Namespace, Name: of.Name}
	if known := m.machines[key]; known == nil || known.uid != of.UID || known.class != Of(class) {
		m.machines[key] = &machine{uid: of.UID, class: Of(class)}
	}
}

// Forget drops what is known of a Machine.
func (m *Memory) Forget(machine types.NamespacedName) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.machines, machine)
}

func keyOf(class *v1alpha1.MachineClass) types.NamespacedName {
	return types.NamespacedName{Namespace: class.Namespace, Name: class.Name}
}

// For returns what the engine needs to know about the capacity for a Machine: of its class, and of the others
// that it may have instead.
func (m *Memory) For(of *v1alpha1.Machine, class *v1alpha1.MachineClass, others []*v1alpha1.MachineClass) instance.Capacity {
	return asker{memory: m, machine: types.NamespacedName{Namespace: of.Namespace, Name: of.Name}, uid: of.UID, class: class, others: others}
}

// asker implements instance.Capacity.
type asker struct {
	memory  *Memory
	machine types.NamespacedName
	uid     types.UID
	class   *v1alpha1.MachineClass
	others  []*v1alpha1.MachineClass
}

// Spent implements instance.Capacity.
func (a asker) Spent() (spent, untouched bool) {
	a.memory.mu.Lock()
	defer a.memory.mu.Unlock()
	known, class := a.known(), a.memory.out(Of(a.class))
	if known == nil || known.asked == perhaps || class == nil || !a.free() {
		return false, false
	}
	now := a.memory.opts.Clock.Now() // one that asks first has to ask
	ready := now.Before(class.until) && !now.Before(class.since.Add(a.memory.opts.After))
	return ready, known.asked == never
}

// Asking implements instance.Capacity.
func (a asker) Asking() { a.note(perhaps) }

func (a asker) note(asked asked) {
	a.memory.mu.Lock()
	defer a.memory.mu.Unlock()
	a.memory.machines[a.machine] = &machine{uid: a.uid, class: Of(a.class), asked: asked}
}

// Asked implements instance.Capacity.
func (a asker) Asked(code codes.Code) (instance.Fallback, time.Duration) {
	switch code {
	case codes.OK, codes.Uninitialized:
		a.memory.made(a.class)
		a.memory.Forget(a.machine)
	case codes.ResourceExhausted:
		a.note(inVain)
		return a.exhausted()
	}
	return instance.NoFallback, 0
}

// made notes that a class has capacity.
func (m *Memory) made(class *v1alpha1.MachineClass) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if known := m.classes[keyOf(class)]; known != nil {
		known.back = true
	}
}

// exhausted notes that the class has no capacity, and returns what follows.
func (a asker) exhausted() (instance.Fallback, time.Duration) {
	m := a.memory
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.opts.Clock.Now()
	known := m.classes[keyOf(a.class)]
	if known == nil || known.class != Of(a.class) || known.back {
		known = &state{class: Of(a.class), since: now}
		m.classes[keyOf(a.class)] = known
	}
	known.until, known.probed = now.Add(m.opts.Memory), time.Time{} // nobody waits for the answer any more
	wait := known.since.Add(m.opts.After).Sub(now)
	switch {
	case !a.free():
		return instance.NoFallback, m.next(a.others)
	case wait > 0:
		return instance.FallsBackLater, wait
	}
	return instance.FallsBack, 0
}

// free reports whether another class may have capacity. The lock is held.
func (a asker) free() bool {
	for _, other := range a.others {
		if a.memory.out(Of(other)) == nil {
			return true
		}
	}
	return false
}

// known returns what is known of the Machine with its class; nil if nothing is. The lock is held.
func (a asker) known() *machine {
	known := a.memory.machines[a.machine]
	if known == nil || known.uid != a.uid || known.class != Of(a.class) {
		return nil
	}
	return known
}
