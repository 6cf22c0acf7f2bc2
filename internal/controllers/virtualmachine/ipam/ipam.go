// Package ipam allocates the addresses of VMs on the user-mode network.
//
// The addresses of a VM are in its object: in spec.vmIPs if the user chose them, otherwise in
// an annotation.
package ipam

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
)

const (
	// firstAutomatic is the offset of the first address in a prefix that VMs get
	// automatically. Lower ones are for the network and for users to choose.
	firstAutomatic = 16
	// reserved is how many addresses at the start of a prefix the network itself uses:
	// its own, one unused, the gateway and the name server.
	reserved = 4
)

// UnavailableError means that a VM cannot have the addresses that it requests. It names the
// field, or the network, to change.
type UnavailableError struct{ message string }

// Error implements error.
func (e *UnavailableError) Error() string { return e.message }

// Allocator never gives two VMs the same address. Make one with New. It may be used
// concurrently.
type Allocator struct {
	networks []netip.Prefix

	mu sync.Mutex
	// granted holds what this process allocated, which a cache may not have yet.
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

// Allocate returns the addresses of a VM: those that it has or requests, or else the lowest
// free one of each prefix. list returns all VMs. The error is an *UnavailableError or that of
// list.
func (a *Allocator) Allocate(vm *v1alpha1.VirtualMachine, list func() ([]v1alpha1.VirtualMachine, error)) ([]string, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	all, err := list()
	if err != nil {
		return nil, err
	}
	key := client.ObjectKeyFromObject(vm)
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

// Refused returns the VMs whose last allocation failed. They may try again when another VM
// releases an address.
func (a *Allocator) Refused() []types.NamespacedName {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Collect(maps.Keys(a.refused))
}

func (a *Allocator) release(vm types.NamespacedName) {
	maps.DeleteFunc(a.granted, func(_ netip.Addr, holder types.NamespacedName) bool { return holder == vm })
}

// usedByOthers returns the addresses that other VMs have, or requested first.
func (a *Allocator) usedByOthers(vm *v1alpha1.VirtualMachine, all []v1alpha1.VirtualMachine) map[netip.Addr]types.NamespacedName {
	own := client.ObjectKeyFromObject(vm)
	used := map[netip.Addr]types.NamespacedName{}
	for i := range all {
		other := client.ObjectKeyFromObject(&all[i])
		if other == own {
			continue
		}
		for _, address := range parse(all[i].Status.Addresses) {
			used[address] = other
		}
		for _, address := range requested(&all[i]) {
			// Of two VMs that request the same address, the older one gets it.
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

func older(a, b *v1alpha1.VirtualMachine) bool {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name)) < 0
}

// Of returns the addresses that a VM has or requests, without prefix length and malformed
// ones.
func Of(vm *v1alpha1.VirtualMachine) []string { return texts(requested(vm)) }

// Changed reports whether a VM may have released an address.
func Changed(before, after *v1alpha1.VirtualMachine) bool {
	return !slices.Equal(before.Status.Addresses, after.Status.Addresses) || !slices.Equal(requested(before), requested(after))
}

func requested(vm *v1alpha1.VirtualMachine) []netip.Addr {
	if len(vm.Spec.VMIPs) > 0 {
		return parse(vm.Spec.VMIPs)
	}
	return parse(strings.Split(vm.Annotations[v1alpha1.AnnotationAddresses], ","))
}

func parse(texts []string) []netip.Addr {
	var addresses []netip.Addr
	for _, text := range texts {
		plain, _, _ := strings.Cut(strings.TrimSpace(text), "/")
		if address, err := netip.ParseAddr(plain); err == nil {
			addresses = append(addresses, address.Unmap())
		}
	}
	return addresses
}

func texts[T fmt.Stringer](values []T) []string {
	var texts []string
	for _, value := range values {
		texts = append(texts, value.String())
	}
	return texts
}

// usable reports whether a VM may have an address of a prefix.
func usable(address netip.Addr, in netip.Prefix) bool {
	if !in.Contains(address) {
		return false
	}
	low := in.Masked().Addr()
	for range reserved {
		if address == low {
			return false
		}
		low = low.Next()
	}
	// The last address of an IPv4 prefix is the broadcast address.
	return !address.Is4() || in.Contains(address.Next())
}

// check returns an *UnavailableError if a VM cannot have addresses.
func check(vm *v1alpha1.VirtualMachine, addresses []netip.Addr, networks []netip.Prefix, used map[netip.Addr]types.NamespacedName) error {
	field := "spec.vmIPs"
	if len(vm.Spec.VMIPs) == 0 {
		field = "metadata.annotations[" + v1alpha1.AnnotationAddresses + "]"
	}
	for _, address := range addresses {
		if !slices.ContainsFunc(networks, func(network netip.Prefix) bool { return usable(address, network) }) {
			known := "none"
			if len(networks) > 0 {
				known = strings.Join(texts(networks), " and ")
			}
			return unavailable("%s: %s is not an address for guests; their networks are %s", field, address, known)
		}
		if holder, found := used[address]; found {
			return unavailable("%s: %s is used by virtual machine %s", field, address, holder)
		}
	}
	return nil
}

// lowestFree returns the lowest free address of each prefix.
func lowestFree(networks []netip.Prefix, used map[netip.Addr]types.NamespacedName) ([]netip.Addr, error) {
	var free []netip.Addr
	for _, network := range networks {
		address := network.Masked().Addr()
		for range firstAutomatic {
			address = address.Next()
		}
		for usable(address, network) && used[address] != (types.NamespacedName{}) {
			address = address.Next()
		}
		if !usable(address, network) {
			return nil, unavailable("the network %s has no free address", network)
		}
		free = append(free, address)
	}
	return free, nil
}

func unavailable(format string, args ...any) error {
	return &UnavailableError{message: fmt.Sprintf(format, args...)}
}
