package ipam

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
)

const (
	// firstAutomatic is the offset of the first address of a prefix that is given
	// automatically. Those below are for the network and for what users choose.
	firstAutomatic = 16
	// reserved is the number of addresses at the start of a prefix that the network
	// itself uses: its own, one unused, the gateway and the name server.
	reserved = 4
)

// Of returns the addresses that a VM has or asks for, without prefix length. Malformed
// ones are left out.
func Of(vm *v1alpha1.VirtualMachine) []string { return texts(requested(vm)) }

// Changed reports whether a VM may have given up an address.
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

// check returns an *UnavailableError if a VM cannot have the addresses that it has or
// asks for.
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
		for usable(address, network) {
			if _, found := used[address]; !found {
				break
			}
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
