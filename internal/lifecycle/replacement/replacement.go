// Package replacement limits how many Machines of a pool are replaced because of their health, or have their
// Pods deleted forcibly after an outage, at the same time.
package replacement

import (
	"context"
	"fmt"
	"slices"
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

// Limiter limits how many Machines of a pool are replaced at the same time or within a period, because
// replacing them may not help if all nodes fail. It lists a pool once, at the first request for one of its
// Machines, and then tracks it through Observe and Forget. The zero value is ready to use.
type Limiter struct {
	// Total limits the Machines of all pools together. If nil, there is no such limit. Its Everywhere must be
	// true.
	Total *Limiter
	// Everywhere treats all Machines as one pool.
	Everywhere bool

	mu       sync.Mutex
	pools    map[types.NamespacedName]*pool
	machines map[types.NamespacedName]*member
	past     past
}

// Request is a request to let a Machine become Failed because of its health.
type Request struct {
	Machine *v1alpha1.Machine
	// Policy is the policy of the Machine's set. If nil, Limit applies.
	Policy *v1alpha1.ReplacementPolicy
	// Limit is a number of Machines, or a percentage of the pool, rounded down. It counts as at least 1.
	Limit intstr.IntOrString
	// TotalLimit is the corresponding limit for Total. It may also be 0.
	TotalLimit intstr.IntOrString
	// Zone returns the zone of a Machine's class. It is called only if Policy is set.
	Zone func(machine *v1alpha1.Machine) string
	Now  time.Time
}

// Allow decides whether the Machine may become Failed because of its health now. If so, it makes a reservation,
// which lasts until the Machine is replaced or Release is called. The cache needs the index ByPool.
func (r *Limiter) Allow(ctx context.Context, cache client.Reader, req Request) (budget.Verdict, error) {
	verdict, err := r.allow(ctx, cache, req, 1)
	if err != nil || !verdict.Allowed() || r.Total == nil {
		return verdict, err
	}
	total := Request{Machine: req.Machine, Limit: req.TotalLimit, Now: req.Now}
	verdict, err = r.Total.allow(ctx, cache, total, 0)
	if err != nil || !verdict.Allowed() {
		r.release(client.ObjectKeyFromObject(req.Machine))
		verdict.Reason = fmt.Sprintf("no more than %s may be replaced at the same time across all pools", req.TotalLimit.String())
	}
	return verdict, err
}

func (r *Limiter) allow(ctx context.Context, cache client.Reader, req Request, minimum int) (budget.Verdict, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m, err := r.memberOf(ctx, cache, req.Machine)
	if err != nil {
		return budget.Verdict{}, err
	}
	verdict := budget.Verdict{}
	switch {
	case req.Policy != nil:
		verdict = r.poolFor(m, req).Decide(req.Policy, req.Machine)
	case m.pool.busyExcept(m) >= max(minimum, budget.Share(req.Limit, m.pool.size)):
		verdict = budget.Verdict{Cause: v1alpha1.CauseReplacementDelayed}
	}
	if verdict.Allowed() {
		m.change(func() { m.granted = true })
		r.past.add(m.pool.name, req)
	}
	return verdict, nil
}

// poolFor returns the state of a Machine's pool for a decision about its budgets. It does not list the Machines, because it may
// be called for each Machine of a pool every few seconds.
func (r *Limiter) poolFor(m *member, req Request) budget.Pool {
	m.pool.classify(budget.Labels(req.Policy), r.past.began)
	m.pool.count(m, -1)
	members := m.pool.kinds.members()
	m.pool.count(m, 1)
	return budget.Pool{
		Zone: req.Zone, Limit: req.Limit, Now: req.Now,
		Members: append(members, m.budgeted()),
		Past:    r.past.of(m.pool, req.Now),
	}
}

// AllowForce reports whether the drain of the Machine may be forced now. If so, it makes a reservation, which
// lasts until the Machine is gone or Release is called. It uses the limit of Allow, but counts only forced
// drains.
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

// Observe updates the Limiter with the cached version of a Machine. It must be called for each change of a
// Machine.
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

// Forget drops the state of a Machine that is gone.
func (r *Limiter) Forget(machine types.NamespacedName) {
	if r.Total != nil {
		r.Total.Forget(machine)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.drop(machine)
}

// memberOf returns the member for the Machine. It lists its pool at the first request.
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
	return r.note(machine.DeepCopy()), nil // a copy, because the pass changes its Machine
}

// note updates the counts. It returns nil if the pool was never requested.
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
		m = &member{pool: p, uid: machine.UID, machine: machine}
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
	// outgoing and incoming count the Machines with these roles, and forced those with a forced drain.
	outgoing, incoming, forced int
	// kinds counts the Machines for policies. It is nil if none was requested.
	kinds *kinds
}

// classify counts the Machines for policies whose budgets apply to groups by these labels, unless they are counted already.
func (p *pool) classify(labels []string, began time.Time) {
	if p.kinds != nil && p.kinds.began.Equal(began) && slices.Equal(p.kinds.labels, labels) {
		return
	}
	p.kinds = newKinds(labels, began)
	for m := range p.members {
		p.kinds.add(m)
	}
}

// count adds the Machine to the counts, or removes it from them.
func (p *pool) count(m *member, change int) {
	if p.kinds != nil {
		p.kinds.count(m, change)
	}
	if m.forced {
		p.forced += change
	}
	switch {
	case m.granted, m.role == budget.Outgoing:
		p.outgoing += change
	case m.role == budget.Incoming:
		p.incoming += change
	}
}

// busyExcept counts the replacements of other Machines. A replacement is an outgoing Machine, an incoming one,
// or a pair of both.
func (p *pool) busyExcept(m *member) int {
	p.count(m, -1)
	defer p.count(m, 1)
	return max(p.outgoing, p.incoming)
}

// member is a Machine of a pool.
type member struct {
	pool *pool
	uid  types.UID
	// machine is the version that the cache last showed. It is read-only.
	machine *v1alpha1.Machine
	role    budget.Role
	// granted reports that the Machine was allowed to become Failed. It is reset when the cache shows the
	// effect.
	granted bool
	// forced reports that its drain was allowed to be forced.
	forced bool
	// kind is the kind by which the Machine is counted.
	kind budget.Kind
}

// budgeted returns the member as budgets count it.
func (m *member) budgeted() budget.Member {
	if m.granted {
		return budget.Member{Machine: m.machine, Role: budget.Outgoing}
	}
	return budget.Member{Machine: m.machine, Role: m.role}
}

// change applies a change to the member and updates the counts.
func (m *member) change(change func()) {
	m.pool.count(m, -1)
	change()
	m.pool.count(m, 1)
}

// pending reports whether a Machine that was allowed to become Failed has not done so yet.
func pending(machine *v1alpha1.Machine) bool {
	return budget.MayTimeOut(machine.Status.CurrentStatus.Phase) && machine.Status.CurrentStatus.PreserveExpiryTime == nil
}

// PolicyOf returns the replacement policy of a Machine's set. It returns nil if there is no policy or no set,
// and an error if the set cannot be read.
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

// PoolOf returns the pool of a Machine, which by convention is the name of its deployment.
func PoolOf(machine *v1alpha1.Machine) string { return machine.Labels[v1alpha1.LabelKeyName] }

// nameOf returns the key of a Machine's pool.
func (r *Limiter) nameOf(machine *v1alpha1.Machine) types.NamespacedName {
	if r.Everywhere {
		return types.NamespacedName{}
	}
	return types.NamespacedName{Namespace: machine.Namespace, Name: PoolOf(machine)}
}

// ByPool is a cache index of Machines by pool. All Machines without the label form one pool, as in MCM.
const ByPool = "machine.pool"

func poolKey(machine *v1alpha1.Machine) string { return "name=" + PoolOf(machine) }

// Pools returns the values of ByPool.
func Pools(object client.Object) []string { return []string{poolKey(object.(*v1alpha1.Machine))} }
