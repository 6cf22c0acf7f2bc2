package main

import (
	"fmt"
	"strconv"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// pool is a MachineDeployment that the benchmark changes.
type pool struct {
	client.ObjectKey
	// machines is its number of Machines.
	machines int
}

// namespace of the manager's objects. With several clusters, each has a namespace whose name begins with it.
const namespace = "bench"

// label is the value of labels and taints of all Machines, and the name of the only pool.
const label = "bench"

// namespaces returns the namespaces with pools.
func (l load) namespaces() []string {
	if l.clusters == 0 {
		return []string{namespace}
	}
	names := make([]string, l.clusters)
	for i := range names {
		names[i] = fmt.Sprintf("%s-%d", namespace, i)
	}
	return names
}

// allPools returns the pools of all namespaces. Their numbers of Machines differ by at most one.
func (l load) allPools() []pool {
	namespaces := l.namespaces()
	total := len(namespaces) * l.pools
	pools := make([]pool, total)
	for i := range pools {
		pools[i] = pool{client.ObjectKey{Namespace: namespaces[i/l.pools], Name: label}, l.machines / total}
		if total > 1 { // nodes of all clusters are in the same API server, so the names of Machines must be unique
			pools[i].Name += "-" + strconv.Itoa(i)
		}
		if i < l.machines%total {
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
