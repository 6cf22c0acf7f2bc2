// Package ipam allocates the addresses of VMs on the user-mode network.
//
// The addresses of a VM are stored in its object: in spec.vmIPs if the user chose them, otherwise in an annotation. An
// address from a pool is also in the annotation; the pool's provider chooses it, and this package checks it.
package ipam

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/specialaddress"
)

const (
	// firstAutomatic is the offset in a prefix of the first address that VMs get automatically. Lower addresses are
	// for the network, or for users to choose.
	firstAutomatic = 16
	// reserved is the number of addresses at the start of a prefix that the network uses: its own address, an unused
	// one, the gateway and the name server.
	reserved = 4
	// gateway is the offset in a prefix of the guests' gateway.
	gateway = 2
)

// UnavailableError means that a VM cannot have the addresses that it requests. The message names the field or the
// network to change.
type UnavailableError struct{ message string }

// Error implements error.
func (e *UnavailableError) Error() string { return e.message }

// Holders finds who has an address. All fields are required.
type Holders struct {
	// VMs returns all VMs that have or request an address: those that a cache has indexed under the address with Keys.
	VMs func(address netip.Addr) ([]v1alpha1.VirtualMachine, error)
	// Guests returns the VMs whose guests may be running with an address, whatever their objects contain now. The
	// object may have been edited or deleted.
	Guests func(address netip.Addr) ([]types.NamespacedName, error)
}

// Allocator allocates addresses. It never gives two VMs the same address. Create one with New. It is safe for
// concurrent use.
type Allocator struct {
	networks []netip.Prefix

	mu sync.Mutex
	// granted has the addresses that this process has allocated. The cache may not have them yet.
	granted map[netip.Addr]types.NamespacedName
	// known has the addresses that each VM was granted or was seen to have.
	known map[types.NamespacedName][]netip.Addr
	// next is the address at which the search for a free address of a prefix begins. As far as this process knows,
	// all lower addresses are taken.
	next map[netip.Prefix]netip.Addr
	// refused has the VMs whose last allocation failed.
	refused map[types.NamespacedName]struct{}
}

// New returns an Allocator for the prefixes of the network, at most one of each IP version. Without prefixes, VMs get
// no addresses, and those that request one are refused.
func New(networks []netip.Prefix) *Allocator {
	a := &Allocator{
		networks: networks,
		granted:  map[netip.Addr]types.NamespacedName{},
		known:    map[types.NamespacedName][]netip.Addr{},
		next:     map[netip.Prefix]netip.Addr{},
		refused:  map[types.NamespacedName]struct{}{},
	}
	for _, network := range networks {
		a.next[network] = lowestAutomatic(network)
	}
	return a
}

// Given is an address that an IP address pool gives to a VM.
type Given struct {
	Address netip.Addr
	// Bits is the prefix length of the network that the pool is for.
	Bits int
	// Gateway of that network. The zero value means that the pool has none.
	Gateway netip.Addr
	// Pool and Claim name the pool and the IPAddressClaim, for messages.
	Pool, Claim string
}

// unavailable returns an *UnavailableError whose message explains how to get another address.
func (g Given) unavailable(format string, args ...any) error {
	return unavailable(format+"; correct the pool, then delete IPAddressClaim %s to get another address", append(args, g.Claim)...)
}

// Allocate returns the addresses of a VM: those that pools give to it or, without pools, those that it already has or
// requests, or else the lowest free address of each prefix. The error is an *UnavailableError or an error of holders.
//
// Allocate calls holders for only a few addresses, regardless of the number of VMs, unless a network has no free
// address.
func (a *Allocator) Allocate(vm *v1alpha1.VirtualMachine, holders Holders, given ...Given) ([]string, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	key := client.ObjectKeyFromObject(vm)
	search := &search{Allocator: a, vm: vm, holders: holders}
	addresses := requested(vm)
	var err error
	switch {
	case len(given) > 0:
		addresses, err = search.checkGiven(given)
	case len(addresses) > 0:
		err = search.check(addresses)
	default:
		addresses, err = search.lowestFree()
	}
	if err != nil {
		a.refused[key] = struct{}{}
		return nil, err
	}
	delete(a.refused, key)
	a.release(key, addresses)
	for _, address := range addresses {
		a.granted[address] = key
	}
	a.known[key] = addresses
	return texts(addresses), nil
}

// Observe records which addresses a VM has, so that they can be released when the VM has other ones or is gone. It
// does not allocate addresses.
func (a *Allocator) Observe(vm *v1alpha1.VirtualMachine) {
	has, key := parse(vm.Status.Addresses), client.ObjectKeyFromObject(vm)
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, address := range has {
		if !slices.Contains(a.known[key], address) {
			a.known[key] = append(slices.Clip(a.known[key]), address)
		}
	}
}

// Forget releases the addresses of a deleted VM.
func (a *Allocator) Forget(vm types.NamespacedName) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.release(vm, nil)
	delete(a.known, vm)
	delete(a.refused, vm)
}

// Refused returns the VMs whose last allocation failed. They may succeed after another VM has released an address.
func (a *Allocator) Refused() []types.NamespacedName {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Collect(maps.Keys(a.refused))
}

// release releases the addresses of a VM, except for those in keep.
func (a *Allocator) release(vm types.NamespacedName, keep []netip.Addr) {
	for _, address := range a.known[vm] {
		if slices.Contains(keep, address) {
			continue
		}
		if a.granted[address] == vm {
			delete(a.granted, address)
		}
		for _, network := range a.networks {
			if network.Contains(address) && address.Less(a.next[network]) && !address.Less(lowestAutomatic(network)) {
				a.next[network] = address
			}
		}
	}
}

// search is a search for addresses of a VM.
type search struct {
	*Allocator
	vm      *v1alpha1.VirtualMachine
	holders Holders
}

// holder returns the other VM that has an address, or requested it first; the zero value if there is none.
func (s *search) holder(address netip.Addr) (types.NamespacedName, error) {
	own := client.ObjectKeyFromObject(s.vm)
	if granted, found := s.granted[address]; found && granted != own {
		return granted, nil
	}
	all, err := s.holders.VMs(address)
	if err != nil {
		return types.NamespacedName{}, err
	}
	for i := range all {
		if other := client.ObjectKeyFromObject(&all[i]); other != own && s.belongsTo(address, &all[i]) {
			return other, nil
		}
	}
	guests, err := s.holders.Guests(address)
	if err != nil {
		return types.NamespacedName{}, err
	}
	for _, guest := range guests {
		if guest != own {
			return guest, nil
		}
	}
	return types.NamespacedName{}, nil
}

// belongsTo reports whether an address belongs to another VM. If two VMs request the same address, the older one gets
// it.
func (s *search) belongsTo(address netip.Addr, other *v1alpha1.VirtualMachine) bool {
	return slices.Contains(parse(other.Status.Addresses), address) ||
		slices.Contains(requested(other), address) &&
			(len(other.Spec.VMIPs) == 0 || !slices.Contains(parse(s.vm.Spec.VMIPs), address) || older(other, s.vm))
}

// check returns an *UnavailableError if the VM cannot have the addresses that it requests or that it was assigned.
func (s *search) check(addresses []netip.Addr) error {
	field := "spec.vmIPs"
	if len(s.vm.Spec.VMIPs) == 0 {
		field = "metadata.annotations[" + v1alpha1.AnnotationAddresses + "]"
	}
	for _, address := range addresses {
		if _, err := s.checkOne(field, address); err != nil {
			return err
		}
	}
	return nil
}

// checkGiven returns the addresses that pools give to the VM, or an *UnavailableError if the VM cannot have one of them.
func (s *search) checkGiven(given []Given) ([]netip.Addr, error) {
	var addresses []netip.Addr
	for i, one := range given {
		address := one.Address
		for _, earlier := range given[:i] {
			if earlier.Address.Is4() == address.Is4() {
				return nil, unavailable("%s and %s: both give the guest an address of the same IP version, %s and %s; use one pool for each version",
					earlier.Pool, one.Pool, earlier.Address, address)
			}
		}
		network, err := s.checkOne(one.Pool, address)
		if wrong, is := errors.AsType[*UnavailableError](err); is {
			return nil, one.unavailable("%s", wrong)
		}
		switch {
		case err != nil:
			return nil, err
		case one.Bits != network.Bits():
			return nil, one.unavailable("%s: address %s has the prefix length %d, but guests have that of their network %s", one.Pool, address, one.Bits, network)
		case one.Gateway.IsValid() && one.Gateway != nth(network, gateway):
			return nil, one.unavailable("%s: address %s has the gateway %s, but guests have the gateway %s of their network %s",
				one.Pool, address, one.Gateway, nth(network, gateway), network)
		}
		addresses = append(addresses, address)
	}
	return addresses, nil
}

// checkOne returns the network of an address, or an *UnavailableError if the VM cannot have the address. The source is
// the field or the pool that the address is from.
func (s *search) checkOne(source string, address netip.Addr) (netip.Prefix, error) {
	i := slices.IndexFunc(s.networks, func(network netip.Prefix) bool { return usable(address, network) })
	if i < 0 {
		networks := "none"
		if len(s.networks) > 0 {
			networks = strings.Join(texts(s.networks), " and ")
		}
		return netip.Prefix{}, unavailable("%s: guests cannot use address %s; guest networks: %s", source, address, networks)
	}
	if kind := specialaddress.Kind(address); kind != "" {
		return netip.Prefix{}, unavailable("%s: guests cannot use address %s: it is %s", source, address, kind)
	}
	holder, err := s.holder(address)
	if err != nil {
		return netip.Prefix{}, err
	}
	if holder != (types.NamespacedName{}) {
		return netip.Prefix{}, unavailable("%s: address %s is already used by virtual machine %s", source, address, holder)
	}
	return s.networks[i], nil
}

// lowestFree returns the lowest free address of each prefix.
func (s *search) lowestFree() ([]netip.Addr, error) {
	var free []netip.Addr
	for _, network := range s.networks {
		address, err := s.free(network, s.next[network])
		if err == nil && !address.IsValid() { // a user may have edited an object
			address, err = s.free(network, lowestAutomatic(network))
		}
		if err != nil {
			return nil, err
		}
		if !address.IsValid() {
			return nil, unavailable("network %s has no free address", network)
		}
		s.next[network] = address
		free = append(free, address)
	}
	return free, nil
}

// free returns the lowest free address of a prefix that is not below from; the zero value if there is none.
func (s *search) free(network netip.Prefix, from netip.Addr) (netip.Addr, error) {
	for address := from; usable(address, network); address = address.Next() {
		if specialaddress.Kind(address) != "" {
			continue
		}
		holder, err := s.holder(address)
		if err != nil || holder == (types.NamespacedName{}) {
			return address, err
		}
	}
	return netip.Addr{}, nil
}

// lowestAutomatic returns the lowest address of a prefix that VMs get automatically.
func lowestAutomatic(network netip.Prefix) netip.Addr { return nth(network, firstAutomatic) }

// nth returns the address of a prefix with an offset.
func nth(network netip.Prefix, offset int) netip.Addr {
	address := network.Masked().Addr()
	for range offset {
		address = address.Next()
	}
	return address
}

func older(a, b *v1alpha1.VirtualMachine) bool {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name)) < 0
}

// Of returns the addresses that a VM has or requests, without their prefix lengths. It omits malformed addresses.
func Of(vm *v1alpha1.VirtualMachine) []string { return texts(requested(vm)) }

// TextsOf returns the addresses that pools give, without their prefix lengths.
func TextsOf(given []Given) []string {
	var texts []string
	for _, one := range given {
		texts = append(texts, one.Address.String())
	}
	return texts
}

// Keys returns the addresses under which a VM is indexed for Holders.
func Keys(vm *v1alpha1.VirtualMachine) []string {
	return texts(append(parse(vm.Status.Addresses), requested(vm)...))
}

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

// usable reports whether guests can use an address of a prefix.
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

func unavailable(format string, args ...any) error {
	return &UnavailableError{message: fmt.Sprintf(format, args...)}
}
