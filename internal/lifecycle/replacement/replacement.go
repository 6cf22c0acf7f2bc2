// Package replacement limits how many Machines of a pool are replaced for their health at once, or
// lose their pods by force after an outage.
package replacement

import (
	"context"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/budget"
)

// Limiter limits how many Machines of a pool are replaced at the same time, or within a time: when all nodes
// fail, replacing them may not cure the cause. It lists a pool once, when the first of its Machines asks,
// and then counts what Observe and Forget report. The zero value is ready to use.
type Limiter struct {
	// Total limits the Machines of all pools together; nil is no limit. Its Everywhere is true.
	Total *Limiter
	// Everywhere makes one pool of all Machines.
	Everywhere bool

	mu       sync.Mutex
	pools    map[types.NamespacedName]*pool
	machines map[types.NamespacedName]*member
	past     past
}

// Request asks whether a Machine may become Failed for its health.
type Request struct {
	Machine *v1alpha1.Machine
	// Policy is that of the Machine's set; nil leaves it to Limit.
	Policy *v1alpha1.ReplacementPolicy
	// Limit is a number of Machines, or a percentage of the pool, rounded down, and at least 1.
	Limit intstr.IntOrString
	// TotalLimit is the same for Total, which may also be 0.
	TotalLimit intstr.IntOrString
	// Zone returns the zone of a Machine. It is called for a Policy only.
	Zone func(machine *v1alpha1.Machine) string
	Now  time.Time
}

// Allow decides whether the Machine may become Failed for its health now, and if so reserves that until
// it is replaced, or until Release. The cache needs the index ByPool.
func (r *Limiter) Allow(ctx context.Context, cache client.Reader, req Request) (budget.Verdict, error) {
	verdict, err := r.allow(ctx, cache, req, 1)
	if err != nil || !verdict.Allowed() || r.Total == nil {
		return verdict, err
	}
	total := Request{Machine: req.Machine, Limit: req.TotalLimit, Now: req.Now}
	verdict, err = r.Total.allow(ctx, cache, total, 0)
	if err != nil || !verdict.Allowed() {
		r.release(client.ObjectKeyFromObject(req.Machine))
		verdict.Reason = fmt.Sprintf("no more than %s may be replaced at the same time in all pools together", req.TotalLimit.String())
	}
	return verdict, err
}

func (r *Limiter) allow(ctx context.Context, cache client.Reader, req Request, least int) (budget.Verdict, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m, err := r.memberOf(ctx, cache, req.Machine)
	if err != nil {
		return budget.Verdict{}, err
	}
	verdict := budget.Verdict{}
	switch {
	case req.Policy != nil:
		verdict = r.poolFor(m.pool, req).Decide(req.Policy, req.Machine)
	case m.pool.busyBeside(m) >= max(least, budget.Share(req.Limit, m.pool.size)):
		verdict = budget.Verdict{Cause: v1alpha1.CauseReplacementDelayed}
	}
	if verdict.Allowed() {
		m.change(func() { m.granted = true })
		r.past.add(m.pool.name, req)
	}
	return verdict, nil
}

// poolFor is what the budgets have to know of a pool.
func (r *Limiter) poolFor(p *pool, req Request) budget.Pool {
	made := budget.Pool{Zone: req.Zone, Limit: req.Limit, Now: req.Now}
	for m := range p.members {
		member := budget.Member{Machine: m.machine, Role: m.role}
		if m.granted {
			member.Role = budget.Outgoing
		}
		made.Members = append(made.Members, member)
	}
	made.Past = r.past.of(p, req.Now)
	return made
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
	case !m.forced && m.pool.forced >= max(1, budget.Share(limit, m.pool.size)):
		return false, nil
	}
	m.change(func() { m.forced = true })
	return true, nil
}

// Observe notes how the cache shows a Machine. It has to be called for each change of a Machine.
func (r *Limiter) Observe(machine *v1alpha1.Machine) {
	if r.Total != nil {
		r.Total.Observe(machine)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.note(machine)
}

// Release drops the reservations of a Machine.
func (r *Limiter) Release(machine types.NamespacedName) {
	if r.Total != nil {
		r.Total.release(machine)
	}
	r.release(machine)
}

func (r *Limiter) release(machine types.NamespacedName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if m := r.machines[machine]; m != nil {
		m.change(func() { m.granted, m.forced = false, false })
		r.past.remove(m.pool.name, m.uid)
	}
}

// Forget drops what is known of a Machine that is gone.
func (r *Limiter) Forget(machine types.NamespacedName) {
	if r.Total != nil {
		r.Total.Forget(machine)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.drop(machine)
}

// memberOf notes the Machine, in a pool that is listed if nobody has asked for it before.
func (r *Limiter) memberOf(ctx context.Context, cache client.Reader, machine *v1alpha1.Machine) (*member, error) {
	name := r.nameOf(machine)
	if r.pools[name] == nil {
		list, of := &v1alpha1.MachineList{}, []client.ListOption{client.UnsafeDisableDeepCopy}
		if !r.Everywhere {
			of = append(of, client.InNamespace(machine.Namespace), client.MatchingFields{ByPool: poolKey(machine)})
		}
		if err := cache.List(ctx, list, of...); err != nil {
			return nil, fmt.Errorf("listing the machines of pool %q: %w", PoolOf(machine), err)
		}
		if r.pools == nil {
			r.pools, r.machines = map[types.NamespacedName]*pool{}, map[types.NamespacedName]*member{}
		}
		r.pools[name] = &pool{name: name, members: map[*member]struct{}{}}
		for i := range list.Items {
			r.note(&list.Items[i])
		}
	}
	return r.note(machine.DeepCopy()), nil // as a pass goes on to change its own
}

// note brings the counts up to date; nil if nobody has asked for the pool.
func (r *Limiter) note(machine *v1alpha1.Machine) *member {
	key, name := client.ObjectKeyFromObject(machine), r.nameOf(machine)
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
		p.members[m] = struct{}{}
		p.size++
		p.count(m, 1)
	}
	m.change(func() {
		m.machine, m.role = machine, budget.RoleOf(machine)
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
	delete(m.pool.members, m)
	m.pool.count(m, -1)
	if m.pool.size--; m.pool.size == 0 {
		delete(r.pools, m.pool.name)
	}
}

// pool counts the Machines of a pool.
type pool struct {
	name    types.NamespacedName
	size    int
	members map[*member]struct{}
	// going and coming are the Machines with these roles; forced are those with a forced drain.
	going, coming, forced int
}

// count adds the Machine to the counts, or takes it out.
func (p *pool) count(m *member, change int) {
	if m.forced {
		p.forced += change
	}
	switch {
	case m.granted, m.role == budget.Outgoing:
		p.going += change
	case m.role == budget.Incoming:
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
	// machine is as the cache showed it last. It is read-only.
	machine *v1alpha1.Machine
	role    budget.Role
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

// pending reports whether a Machine that was allowed to become Failed is not yet.
func pending(machine *v1alpha1.Machine) bool {
	return budget.MayTimeOut(machine.Status.CurrentStatus.Phase) && machine.Status.CurrentStatus.PreserveExpiryTime == nil
}

// PolicyOf returns the replacement policy of the set of a Machine; nil if it has none, or no set. Errors: the set cannot be read.
func PolicyOf(ctx context.Context, cache client.Reader, machine *v1alpha1.Machine) (*v1alpha1.ReplacementPolicy, error) {
	owner := metav1.GetControllerOf(machine)
	if owner == nil || owner.Kind != "MachineSet" {
		return nil, nil
	}
	set := &v1alpha1.MachineSet{}
	err := cache.Get(ctx, client.ObjectKey{Namespace: machine.Namespace, Name: owner.Name}, set, client.UnsafeDisableDeepCopy)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("reading machine set %s for its replacement policy: %w", owner.Name, err)
	}
	return budget.Of(set), nil
}

// PoolOf returns the pool of a Machine: by convention the name of its deployment.
func PoolOf(machine *v1alpha1.Machine) string { return machine.Labels[v1alpha1.LabelKeyName] }

// nameOf names the pool of a Machine.
func (r *Limiter) nameOf(machine *v1alpha1.Machine) types.NamespacedName {
	if r.Everywhere {
		return types.NamespacedName{}
	}
	return types.NamespacedName{Namespace: machine.Namespace, Name: PoolOf(machine)}
}

// ByPool is an index of Machines in the cache by their pool. Machines without the label are one
// pool, as in MCM.
const ByPool = "machine.pool"

func poolKey(machine *v1alpha1.Machine) string { return "name=" + PoolOf(machine) }

// Pools returns the values of ByPool.
func Pools(object client.Object) []string { return []string{poolKey(object.(*v1alpha1.Machine))} }
