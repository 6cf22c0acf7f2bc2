// Package replacement limits how many Machines of a pool are replaced for their health at once.
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

// Limiter keeps a pool from being replaced all at once when its nodes fail all at once: for a
// cause that replacing them does not cure, as a broken network or image. It remembers who was
// allowed to be replaced until the cache shows it. The zero value is ready to use.
type Limiter struct {
	mu      sync.Mutex
	granted map[types.NamespacedName]types.UID
}

// Allow reports whether the Machine may be declared Failed for its health now. If so, the place
// is the Machine's until Forget, or until it is replaced. The limit is a number of Machines, or a
// percentage of the pool, rounded down; it counts as 1 if it is less. The cache needs the index
// ByPool.
func (r *Limiter) Allow(ctx context.Context, cache client.Reader, machine *v1alpha1.Machine, limit intstr.IntOrString) (bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	pool := &v1alpha1.MachineList{}
	err := cache.List(ctx, pool, client.InNamespace(machine.Namespace),
		client.MatchingFields{ByPool: poolKey(machine)}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return false, fmt.Errorf("listing the machines of pool %q: %w", PoolOf(machine), err)
	}
	if r.busy(pool.Items, machine) >= limitOf(limit, len(pool.Items)) {
		return false, nil
	}
	if r.granted == nil {
		r.granted = map[types.NamespacedName]types.UID{}
	}
	r.granted[client.ObjectKeyFromObject(machine)] = machine.UID
	return true, nil
}

// busy counts the replacements that are under way in a pool, one's own aside. A
// replacement is a Machine that goes, one that comes, or both. One that cannot be created
// blocks nobody: waiting for it would help nobody either.
func (r *Limiter) busy(pool []v1alpha1.Machine, asking *v1alpha1.Machine) int {
	going, coming := 0, 0
	for i := range pool {
		machine := &pool[i]
		status := &machine.Status.CurrentStatus
		if machine.UID == asking.UID || status.PreserveExpiryTime != nil {
			continue
		}
		switch {
		case !machine.DeletionTimestamp.IsZero():
			going++
		case status.Phase == v1alpha1.MachineFailed, status.Phase == v1alpha1.MachineTerminating, r.pending(machine):
			going++
		case settled(status.Phase):
		default:
			coming++
		}
	}
	return max(going, coming)
}

// settled reports whether a Machine in this phase is no part of a replacement.
func settled(phase v1alpha1.MachinePhase) bool {
	switch phase {
	case v1alpha1.MachineRunning, v1alpha1.MachineAvailable, v1alpha1.MachineUnknown, v1alpha1.MachineCrashLoopBackOff:
		return true
	default:
		return false
	}
}

// pending reports whether the Machine was allowed to be Failed, and the cache does not show
// yet what became of it.
func (r *Limiter) pending(machine *v1alpha1.Machine) bool {
	key := client.ObjectKeyFromObject(machine)
	if uid, ok := r.granted[key]; !ok || uid != machine.UID {
		return false
	}
	if MayTimeOut(machine.Status.CurrentStatus.Phase) {
		return true
	}
	delete(r.granted, key)
	return false
}

// Forget drops what is known of a Machine that is gone, or needs no replacement.
func (r *Limiter) Forget(machine types.NamespacedName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.granted, machine)
}

// limitOf is the number of replacements that a pool of some size allows: at least one, or
// nothing would ever be replaced.
func limitOf(limit intstr.IntOrString, size int) int {
	number, err := intstr.GetScaledValueFromIntOrPercent(&limit, size, false)
	if err != nil {
		return 1
	}
	return max(number, 1)
}

// PoolOf names the pool that a Machine belongs to: by convention its deployment.
func PoolOf(machine *v1alpha1.Machine) string { return machine.Labels[v1alpha1.LabelKeyName] }

// ByPool is an index of Machines in the cache: by their pool.
const ByPool = "machine.pool"

// poolKey is the value of ByPool. Machines without the label are one pool, as in
// MCM.
func poolKey(machine *v1alpha1.Machine) string { return "name=" + PoolOf(machine) }

// Pools are the values of ByPool.
func Pools(object client.Object) []string { return []string{poolKey(object.(*v1alpha1.Machine))} }

// MayTimeOut reports whether a Machine in this phase becomes Failed when it is unhealthy for too
// long.
func MayTimeOut(phase v1alpha1.MachinePhase) bool {
	return phase == v1alpha1.MachineUnknown || phase == v1alpha1.MachineInPlaceUpdateFailed
}
