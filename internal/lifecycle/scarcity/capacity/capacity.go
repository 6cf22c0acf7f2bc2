// Package capacity remembers which classes have no capacity, so that not every Machine has to try them.
//
// This knowledge only delays work or prevents it from being done twice. It never decides whether an instance
// exists. Losing it costs time.
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

// The defaults of the manager's flags.
const (
	DefaultAfter  = 5 * time.Second
	DefaultMemory = 5 * time.Minute
)

// probe is how long other Machines wait while one Machine tries whether a class has capacity again.
const probe = 30 * time.Second

// Options configure a Memory.
type Options struct {
	// After is how long a class must be without capacity before another one is used. If zero, another class is
	// used immediately.
	After time.Duration
	// Memory is how long a class counts as having no capacity after it was tried. Zero means DefaultMemory.
	Memory time.Duration
	Clock  clock.PassiveClock
}

// Memory is the known capacity of classes. Create one with New.
type Memory struct {
	opts Options

	mu       sync.Mutex
	classes  map[types.NamespacedName]*state
	machines map[types.NamespacedName]*machine
}

// New creates a Memory.
func New(opts Options) *Memory {
	opts.Memory = cmp.Or(opts.Memory, DefaultMemory)
	return &Memory{opts: opts, classes: map[types.NamespacedName]*state{}, machines: map[types.NamespacedName]*machine{}}
}

// Class is a version of a class. Its zone is part of the version. Another version may have capacity.
type Class struct {
	types.NamespacedName
	UID        types.UID
	Generation int64
}

// Of returns the key under which a class is remembered.
func Of(class *v1alpha1.MachineClass) Class {
	return Class{types.NamespacedName{Namespace: class.Namespace, Name: class.Name}, class.UID, class.Generation}
}

// state is the state of a class that had no capacity when it was tried.
type state struct {
	class Class
	// since is when the class was first without capacity, and until is when it may be tried again. Until probed,
	// other Machines wait for the one that tries it.
	since, until, probed time.Time
	// back reports that the class has capacity again.
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
	// notTried means that no process has tried the class for the Machine.
	notTried asked = iota
	// tried means that the class was tried and resources may have been created.
	tried
	// failed means that the class was tried last without finding capacity.
	failed
)

// out returns the state of a class that has no capacity, or nil if it may have capacity. The lock is held.
func (m *Memory) out(class Class) *state {
	known := m.classes[class.NamespacedName]
	if known == nil || known.class != class || known.back || !m.opts.Clock.Now().Before(known.free()) {
		return nil
	}
	return known
}

// free returns when Machines other than the one that tries first may use the class.
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

// Claim reports whether a class may be tried for a Machine. If the class had no capacity before, one Machine
// tries it, and the others wait for the result for up to half a minute.
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

// Next returns the time until one of the classes may be tried again. It returns zero if there are no classes.
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

// Untouched records that the class of a Machine has not been tried yet, because the Machine was just created or
// has just got that class. It does not overwrite a later attempt.
func (m *Memory) Untouched(of *v1alpha1.Machine, class *v1alpha1.MachineClass) {
	m.mu.Lock()
	defer m.mu.Unlock()
	key := types.NamespacedName{Namespace: of.Namespace, Name: of.Name}
	if known := m.machines[key]; known == nil || known.uid != of.UID || known.class != Of(class) {
		m.machines[key] = &machine{uid: of.UID, class: Of(class)}
	}
}

// Forget drops the state of a Machine.
func (m *Memory) Forget(machine types.NamespacedName) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.machines, machine)
}

func keyOf(class *v1alpha1.MachineClass) types.NamespacedName {
	return types.NamespacedName{Namespace: class.Namespace, Name: class.Name}
}

// For returns the capacity for a Machine, of its class and of the alternative classes, in the form that the
// engine needs.
func (m *Memory) For(of *v1alpha1.Machine, class *v1alpha1.MachineClass, others []*v1alpha1.MachineClass) instance.Capacity {
	return machineCapacity{memory: m, machine: types.NamespacedName{Namespace: of.Namespace, Name: of.Name}, uid: of.UID, class: class, others: others}
}

// machineCapacity implements instance.Capacity.
type machineCapacity struct {
	memory  *Memory
	machine types.NamespacedName
	uid     types.UID
	class   *v1alpha1.MachineClass
	others  []*v1alpha1.MachineClass
}

// Spent implements instance.Capacity.
func (a machineCapacity) Spent() (spent, untouched bool) {
	a.memory.mu.Lock()
	defer a.memory.mu.Unlock()
	known, class := a.known(), a.memory.out(Of(a.class))
	if known == nil || known.asked == tried || class == nil || !a.free() {
		return false, false
	}
	now := a.memory.opts.Clock.Now() // after until, the class must be tried
	ready := now.Before(class.until) && !now.Before(class.since.Add(a.memory.opts.After))
	return ready, known.asked == notTried
}

// Asking implements instance.Capacity.
func (a machineCapacity) Asking() { a.note(tried) }

func (a machineCapacity) note(asked asked) {
	a.memory.mu.Lock()
	defer a.memory.mu.Unlock()
	a.memory.machines[a.machine] = &machine{uid: a.uid, class: Of(a.class), asked: asked}
}

// Asked implements instance.Capacity.
func (a machineCapacity) Asked(code codes.Code) (instance.Fallback, time.Duration) {
	switch code {
	case codes.OK, codes.Uninitialized:
		a.memory.made(a.class)
		a.memory.Forget(a.machine)
	case codes.ResourceExhausted:
		a.note(failed)
		return a.exhausted()
	}
	return instance.NoFallback, 0
}

// made records that a class has capacity.
func (m *Memory) made(class *v1alpha1.MachineClass) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if known := m.classes[keyOf(class)]; known != nil {
		known.back = true
	}
}

// exhausted records that the class has no capacity, and returns what follows.
func (a machineCapacity) exhausted() (instance.Fallback, time.Duration) {
	m := a.memory
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.opts.Clock.Now()
	known := m.classes[keyOf(a.class)]
	if known == nil || known.class != Of(a.class) || known.back {
		known = &state{class: Of(a.class), since: now}
		m.classes[keyOf(a.class)] = known
	}
	known.until, known.probed = now.Add(m.opts.Memory), time.Time{} // the other Machines stop waiting
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
func (a machineCapacity) free() bool {
	for _, other := range a.others {
		if a.memory.out(Of(other)) == nil {
			return true
		}
	}
	return false
}

// known returns the state of the Machine with its class, or nil if there is none. The lock is held.
func (a machineCapacity) known() *machine {
	known := a.memory.machines[a.machine]
	if known == nil || known.uid != a.uid || known.class != Of(a.class) {
		return nil
	}
	return known
}
