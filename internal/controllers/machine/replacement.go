package machine

import (
	"context"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// replacements keeps a pool from being replaced all at once when its nodes fail all at
// once: for a cause that replacing them does not cure, as a broken network or image. It
// remembers who was allowed to be replaced until the cache shows it.
type replacements struct {
	mu      sync.Mutex
	granted map[types.NamespacedName]types.UID
}

// mayReplace reports whether the Machine may be declared Failed for its health now. If so,
// the place is the Machine's until it is healthy, replaced or gone.
func (c *Controller) mayReplace(ctx context.Context, machine *v1alpha1.Machine) (bool, error) {
	r := &c.replacements
	r.mu.Lock()
	defer r.mu.Unlock()
	pool := &v1alpha1.MachineList{}
	err := c.Client.List(ctx, pool, client.InNamespace(machine.Namespace),
		client.MatchingFields{machineByPool: poolKey(machine)}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return false, fmt.Errorf("listing the machines of pool %q: %w", poolOf(machine), err)
	}
	if r.busy(pool.Items, machine) >= limitOf(c.Health.MaxReplacements, len(pool.Items)) {
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
func (r *replacements) busy(pool []v1alpha1.Machine, asking *v1alpha1.Machine) int {
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
func (r *replacements) pending(machine *v1alpha1.Machine) bool {
	key := client.ObjectKeyFromObject(machine)
	if uid, ok := r.granted[key]; !ok || uid != machine.UID {
		return false
	}
	if mayTimeOut(machine.Status.CurrentStatus.Phase) {
		return true
	}
	delete(r.granted, key)
	return false
}

// forget drops what is known of a Machine that is gone, or needs no replacement.
func (r *replacements) forget(machine types.NamespacedName) {
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

// poolOf names the pool that a Machine belongs to: by convention its deployment.
func poolOf(machine *v1alpha1.Machine) string { return machine.Labels[v1alpha1.LabelKeyName] }

// machineByPool is an index of the cache: Machines by their pool's key.
const machineByPool = "machine.pool"

// poolKey is the value of machineByPool. Machines without the label are one pool, as in
// MCM.
func poolKey(machine *v1alpha1.Machine) string { return "name=" + poolOf(machine) }

func byPool(object client.Object) []string { return []string{poolKey(object.(*v1alpha1.Machine))} }
