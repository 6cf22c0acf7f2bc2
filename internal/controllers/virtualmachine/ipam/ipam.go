// Package ipam gives VMs their addresses on the user-mode network.
//
// Which addresses a VM has is written in its object: in spec.vmIPs if the user chose
// them, in an annotation otherwise.
package ipam

import (
	"maps"
	"net/netip"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
)

// UnavailableError means that a VM cannot have the addresses that it needs or asks for.
// It names the field, or the network, to change.
type UnavailableError struct{ message string }

// Error implements error.
func (e *UnavailableError) Error() string { return e.message }

// Allocator keeps two VMs from getting the same address. Make one with New. It may be
// used from any goroutine.
type Allocator struct {
	networks []netip.Prefix

	mu sync.Mutex
	// granted holds what this process gave, which a cache may not show yet.
	granted map[netip.Addr]types.NamespacedName
	// refused holds the VMs whose last allocation failed.
	refused map[types.NamespacedName]struct{}
}

// New returns an allocator for the prefixes of the network, at most one of each IP
// version. Without prefixes VMs get no address, and those that ask for one are refused.
func New(networks []netip.Prefix) *Allocator {
	return &Allocator{
		networks: networks,
		granted:  map[netip.Addr]types.NamespacedName{},
		refused:  map[types.NamespacedName]struct{}{},
	}
}

// Allocate returns the addresses of a VM: those that it has or asks for, if no other VM
// has them, or else the lowest free one of each prefix. list returns all VMs. The error
// is an *UnavailableError or that of list.
func (a *Allocator) Allocate(vm *v1alpha1.VirtualMachine, list func() ([]v1alpha1.VirtualMachine, error)) ([]string, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	all, err := list()
	if err != nil {
		return nil, err
	}
	key := keyOf(vm)
	used := a.usedByOthers(vm, all)
	addresses := requested(vm)
	if len(addresses) > 0 {
		err = check(vm, addresses, a.networks, used)
	} else {
		addresses, err = lowestFree(a.networks, used)
	}
	if err != nil {
		a.refused[key] = struct{}{}
		return nil, err
	}
	delete(a.refused, key)
	a.release(key)
	for _, address := range addresses {
		a.granted[address] = key
	}
	return texts(addresses), nil
}

// Forget releases the addresses of a VM that is gone.
func (a *Allocator) Forget(vm types.NamespacedName) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.release(vm)
	delete(a.refused, vm)
}

// Refused returns the VMs that were refused an address. They may try again when another
// VM gives one up.
func (a *Allocator) Refused() []types.NamespacedName {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Collect(maps.Keys(a.refused))
}

func (a *Allocator) release(vm types.NamespacedName) {
	maps.DeleteFunc(a.granted, func(_ netip.Addr, holder types.NamespacedName) bool { return holder == vm })
}

// usedByOthers returns the addresses that other VMs have or asked for first.
func (a *Allocator) usedByOthers(vm *v1alpha1.VirtualMachine, all []v1alpha1.VirtualMachine) map[netip.Addr]types.NamespacedName {
	own := keyOf(vm)
	used := map[netip.Addr]types.NamespacedName{}
	for i := range all {
		other := keyOf(&all[i])
		if other == own {
			continue
		}
		for _, address := range parse(all[i].Status.Addresses) {
			used[address] = other
		}
		for _, address := range requested(&all[i]) {
			// Of two VMs that ask for the same address, the older one gets it.
			if len(all[i].Spec.VMIPs) == 0 || !slices.Contains(parse(vm.Spec.VMIPs), address) || older(&all[i], vm) {
				used[address] = other
			}
		}
	}
	for address, holder := range a.granted {
		if holder != own {
			used[address] = holder
		}
	}
	return used
}

func keyOf(vm *v1alpha1.VirtualMachine) types.NamespacedName {
	return types.NamespacedName{Namespace: vm.Namespace, Name: vm.Name}
}

func older(a, b *v1alpha1.VirtualMachine) bool {
	if order := a.CreationTimestamp.Compare(b.CreationTimestamp.Time); order != 0 {
		return order < 0
	}
	return a.Namespace+"/"+a.Name < b.Namespace+"/"+b.Name
}
