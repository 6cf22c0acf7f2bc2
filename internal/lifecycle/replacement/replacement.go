// Package replacement limits how many Machines of a pool are replaced for their health at once, or
// lose their pods by force after an outage.
package replacement

import (
	"context"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// Limiter limits how many Machines of a pool are replaced at the same time: when all nodes fail,
// replacing them may not cure the cause. It lists a pool once, when the first of its Machines asks,
// and then counts what Observe and Forget report. The zero value is ready to use.
type Limiter struct {
	mu       sync.Mutex
	pools    map[types.NamespacedName]*pool
	machines map[types.NamespacedName]*member
}

// Allow reports whether the Machine may become Failed for its health now, and reserves that until
// it is replaced, or until Release. The limit is a number of Machines, or a percentage of the pool,
// rounded down, and at least 1. The cache needs the index ByPool.
func (r *Limiter) Allow(ctx context.Context, cache client.Reader, machine *v1alpha1.Machine, limit intstr.IntOrString) (bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m, err := r.memberOf(ctx, cache, machine)
	if err != nil || m.pool.busyBeside(m) >= limitOf(limit, m.pool.size) {
		return false, err
	}
	m.change(func() { m.granted = true })
	return true, nil
}

// AllowForce reports whether the drain of the Machine may be forced now, and reserves that until the
// Machine is gone, or until Release. The limit is that of Allow, and counts nothing but forced drains.
func (r *Limiter) AllowForce(ctx context.Context, cache client.Reader, machine *v1alpha1.Machine, limit intstr.IntOrString) (bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m, err := r.memberOf(ctx, cache, machine)
	switch {
	case err != nil:
		return false, err
	case !m.forced && m.pool.forced >= limitOf(limit, m.pool.size):
		return false, nil
	}
	m.change(func() { m.forced = true })
	return true, nil
}

// Observe notes how the cache shows a Machine. It has to be called for each change of a Machine.
func (r *Limiter) Observe(machine *v1alpha1.Machine) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.note(machine)
}

// Release drops the reservations of a Machine.
func (r *Limiter) Release(machine types.NamespacedName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if m := r.machines[machine]; m != nil {
		m.change(func() { m.granted, m.forced = false, false })
	}
}

// Forget drops what is known of a Machine that is gone.
func (r *Limiter) Forget(machine types.NamespacedName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.drop(machine)
}

// memberOf notes the Machine, in a pool that is listed if nobody has asked for it before.
func (r *Limiter) memberOf(ctx context.Context, cache client.Reader, machine *v1alpha1.Machine) (*member, error) {
	name := nameOf(machine)
	if r.pools[name] == nil {
		list := &v1alpha1.MachineList{}
		err := cache.List(ctx, list, client.InNamespace(machine.Namespace),
			client.MatchingFields{ByPool: poolKey(machine)}, client.UnsafeDisableDeepCopy)
		if err != nil {
			return nil, fmt.Errorf("listing the machines of pool %q: %w", PoolOf(machine), err)
		}
		if r.pools == nil {
			r.pools, r.machines = map[types.NamespacedName]*pool{}, map[types.NamespacedName]*member{}
		}
		r.pools[name] = &pool{name: name}
		for i := range list.Items {
			r.note(&list.Items[i])
		}
	}
	return r.note(machine), nil
}

// note brings the counts up to date; nil if nobody has asked for the pool.
func (r *Limiter) note(machine *v1alpha1.Machine) *member {
	key, name := client.ObjectKeyFromObject(machine), nameOf(machine)
	m := r.machines[key]
	if m != nil && (m.uid != machine.UID || m.pool.name != name) {
		r.drop(key)
		m = nil
	}
	if m == nil {
		p := r.pools[name]
		if p == nil {
			return nil
		}
		m = &member{pool: p, uid: machine.UID}
		r.machines[key] = m
		p.size++
		p.count(m, 1)
	}
	m.change(func() {
		m.role = roleOf(machine)
		m.granted = m.granted && pending(machine)
	})
	return m
}

func (r *Limiter) drop(key types.NamespacedName) {
	m := r.machines[key]
	if m == nil {
		return
	}
	delete(r.machines, key)
	m.pool.count(m, -1)
	if m.pool.size--; m.pool.size == 0 {
		delete(r.pools, m.pool.name)
	}
}

// pool counts the Machines of a pool.
type pool struct {
	name types.NamespacedName
	size int
	// going and coming are the Machines with these roles; forced are those with a forced drain.
	going, coming, forced int
}

// count adds the Machine to the counts, or takes it out.
func (p *pool) count(m *member, change int) {
	if m.forced {
		p.forced += change
	}
	switch {
	case m.granted, m.role == going:
		p.going += change
	case m.role == coming:
		p.coming += change
	}
}

// busyBeside counts the replacements of other Machines. A replacement is a Machine that goes, one
// that comes, or both.
func (p *pool) busyBeside(m *member) int {
	p.count(m, -1)
	defer p.count(m, 1)
	return max(p.going, p.coming)
}

// member is a Machine of a pool.
type member struct {
	pool *pool
	uid  types.UID
	role role
	// granted reports that it was allowed to become Failed, until the cache shows the effect.
	granted bool
	// forced reports that its drain was allowed to be forced.
	forced bool
}

// change changes the Machine, and the counts with it.
func (m *member) change(change func()) {
	m.pool.count(m, -1)
	change()
	m.pool.count(m, 1)
}

// role is what a Machine is in the replacements of its pool.
type role int

const (
	staying role = iota
	going
	coming
)

// roleOf returns the role of a Machine. One that cannot be created does not come: waiting for it
// would not help.
func roleOf(machine *v1alpha1.Machine) role {
	switch status := &machine.Status.CurrentStatus; {
	case status.PreserveExpiryTime != nil:
		return staying
	case !machine.DeletionTimestamp.IsZero():
		return going
	default:
		return roleIn(status.Phase)
	}
}

// pending reports whether a Machine that was allowed to become Failed is not yet.
func pending(machine *v1alpha1.Machine) bool {
	return MayTimeOut(machine.Status.CurrentStatus.Phase) && machine.Status.CurrentStatus.PreserveExpiryTime == nil
}

func roleIn(phase v1alpha1.MachinePhase) role {
	switch phase {
	case v1alpha1.MachineFailed, v1alpha1.MachineTerminating:
		return going
	case v1alpha1.MachineRunning, v1alpha1.MachineAvailable, v1alpha1.MachineCrashLoopBackOff,
		v1alpha1.MachineUnknown, v1alpha1.MachineInPlaceUpdateFailed:
		return staying
	default:
		return coming
	}
}

func limitOf(limit intstr.IntOrString, size int) int {
	number, _ := intstr.GetScaledValueFromIntOrPercent(&limit, size, false) // 0 if it is neither
	return max(number, 1)
}

// PoolOf returns the pool of a Machine: by convention the name of its deployment.
func PoolOf(machine *v1alpha1.Machine) string { return machine.Labels[v1alpha1.LabelKeyName] }

func nameOf(machine *v1alpha1.Machine) types.NamespacedName {
	return types.NamespacedName{Namespace: machine.Namespace, Name: PoolOf(machine)}
}

// ByPool is an index of Machines in the cache by their pool. Machines without the label are one
// pool, as in MCM.
const ByPool = "machine.pool"

func poolKey(machine *v1alpha1.Machine) string { return "name=" + PoolOf(machine) }

// Pools returns the values of ByPool.
func Pools(object client.Object) []string { return []string{poolKey(object.(*v1alpha1.Machine))} }

// MayTimeOut reports whether the health timeout applies to Machines in this phase.
func MayTimeOut(phase v1alpha1.MachinePhase) bool {
	return phase == v1alpha1.MachineUnknown || phase == v1alpha1.MachineInPlaceUpdateFailed
}
