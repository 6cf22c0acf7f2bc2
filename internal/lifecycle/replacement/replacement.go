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

// Limiter limits how many Machines of a pool are replaced at the same time: when all nodes fail,
// replacing them may not cure the cause. The zero value is ready to use.
type Limiter struct {
	mu sync.Mutex
	// granted are the Machines that were allowed, until the cache shows the effect.
	granted map[types.NamespacedName]types.UID
}

// Allow reports whether the Machine may become Failed for its health now, and reserves that until
// it is replaced, or until Forget. The limit is a number of Machines, or a percentage of the pool,
// rounded down, and at least 1. The cache needs the index ByPool.
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

// busy counts the replacements of other Machines in a pool. A replacement is a Machine that goes,
// one that comes, or both. One that cannot be created does not count: waiting would not help.
func (r *Limiter) busy(pool []v1alpha1.Machine, asking *v1alpha1.Machine) int {
	going, coming := 0, 0
	for i := range pool {
		machine := &pool[i]
		status := &machine.Status.CurrentStatus
		if machine.UID == asking.UID || status.PreserveExpiryTime != nil {
			continue
		}
		if !machine.DeletionTimestamp.IsZero() || r.pending(machine) {
			going++
			continue
		}
		switch status.Phase {
		case v1alpha1.MachineFailed, v1alpha1.MachineTerminating:
			going++
		case v1alpha1.MachineRunning, v1alpha1.MachineAvailable, v1alpha1.MachineUnknown, v1alpha1.MachineCrashLoopBackOff:
		default:
			coming++
		}
	}
	return max(going, coming)
}

// pending reports whether the Machine was allowed to become Failed and the cache does not show it
// yet.
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

// Forget drops the reservation of a Machine.
func (r *Limiter) Forget(machine types.NamespacedName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.granted, machine)
}

func limitOf(limit intstr.IntOrString, size int) int {
	number, _ := intstr.GetScaledValueFromIntOrPercent(&limit, size, false) // 0 if it is neither
	return max(number, 1)
}

// PoolOf returns the pool of a Machine: by convention the name of its deployment.
func PoolOf(machine *v1alpha1.Machine) string { return machine.Labels[v1alpha1.LabelKeyName] }

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
