package main

import (
	"strconv"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// pool is a MachineDeployment that the benchmark changes.
type pool struct {
	client.ObjectKey
	// machines is its number of Machines.
	machines int
}

// namespace of the manager's objects.
const namespace = "bench"

// label is the value of labels and taints of all Machines, and the name of the only pool.
const label = "bench"

// allPools returns all pools. Their numbers of Machines differ by at most one.
func (l load) allPools() []pool {
	pools := make([]pool, l.pools)
	for i := range pools {
		pools[i] = pool{client.ObjectKey{Namespace: namespace, Name: label}, l.machines / l.pools}
		if l.pools > 1 {
			pools[i].Name += "-" + strconv.Itoa(i)
		}
		if i < l.machines%l.pools {
			pools[i].machines++
		}
	}
	return pools
}

// all returns the number of Machines that a pool has when it is scaled up.
func all(p pool) int { return p.machines }

// none is the number of Machines of a pool that is scaled down.
func none(pool) int { return 0 }

// sum returns the number of Machines of all pools.
func (w *setup) sum(machines func(pool) int) int {
	total := 0
	for _, p := range w.pools {
		total += machines(p)
	}
	return total
}
