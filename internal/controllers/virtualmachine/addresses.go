package virtualmachine

import (
	"net/netip"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
)

const (
	// firstGiven is the first address of a prefix that is given to a VM, counted from
	// the prefix itself. Those below are for the network and for what users choose.
	firstGiven = 16
	// reserved are the first addresses of a prefix, which the network itself uses:
	// its own, one unused, the gateway and the name server.
	reserved = 4
)

// addressesOf are the addresses of a VM, without prefix length: those of its spec, or
// else those that it was given. What is garbled is left out.
func addressesOf(vm *v1alpha1.VirtualMachine) []string {
	var texts []string
	for _, address := range claimed(vm) {
		texts = append(texts, address.String())
	}
	return texts
}

func claimed(vm *v1alpha1.VirtualMachine) []netip.Addr {
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
	// The last one of IPv4 is the broadcast address.
	return !address.Is4() || in.Contains(address.Next())
}

func asks(vm *v1alpha1.VirtualMachine, address netip.Addr) bool {
	for _, own := range parse(vm.Spec.VMIPs) {
		if own == address {
			return true
		}
	}
	return false
}

func older(a, b *v1alpha1.VirtualMachine) bool {
	if order := a.CreationTimestamp.Compare(b.CreationTimestamp.Time); order != 0 {
		return order < 0
	}
	return a.Namespace+"/"+a.Name < b.Namespace+"/"+b.Name
}

// checkAddresses says what is wrong with addresses that a VM has or asks for.
func checkAddresses(vm *v1alpha1.VirtualMachine, addresses []netip.Addr, networks []netip.Prefix, taken map[netip.Addr]types.NamespacedName) *problem {
	field := "spec.vmIPs"
	if len(vm.Spec.VMIPs) == 0 {
		field = "metadata.annotations[" + v1alpha1.AnnotationAddresses + "]"
	}
	for _, address := range addresses {
		fits := false
		for _, network := range networks {
			fits = fits || usable(address, network)
		}
		if !fits {
			return problemf(reasonAddress, "%s: %s is not an address for guests; their networks are %s", field, address, names(networks))
		}
		if holder, found := taken[address]; found {
			return problemf(reasonAddress, "%s: %s is used by virtual machine %s", field, address, holder)
		}
	}
	return nil
}

func names(networks []netip.Prefix) string {
	if len(networks) == 0 {
		return "none"
	}
	var texts []string
	for _, network := range networks {
		texts = append(texts, network.String())
	}
	return strings.Join(texts, " and ")
}

// lowest is the lowest free address of each network.
func lowest(networks []netip.Prefix, taken map[netip.Addr]types.NamespacedName) ([]netip.Addr, *problem) {
	var found []netip.Addr
	for _, network := range networks {
		address := network.Masked().Addr()
		for range firstGiven {
			address = address.Next()
		}
		for usable(address, network) {
			if _, used := taken[address]; !used {
				break
			}
			address = address.Next()
		}
		if !usable(address, network) {
			return nil, problemf(reasonAddress, "the network %s has no free address", network)
		}
		found = append(found, address)
	}
	return found, nil
}
