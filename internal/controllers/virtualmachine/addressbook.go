package virtualmachine

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
)

// addressBook keeps two VMs from being given one address. What VMs have is in their
// objects; this is what this process gave or granted, which the cache may not show yet.
type addressBook struct {
	mu     sync.Mutex
	holder map[netip.Addr]types.NamespacedName
	// refused are the VMs that were refused last.
	refused map[types.NamespacedName]struct{}
}

func newAddressBook() *addressBook {
	return &addressBook{
		holder:  map[netip.Addr]types.NamespacedName{},
		refused: map[types.NamespacedName]struct{}{},
	}
}

func (b *addressBook) forget(vm types.NamespacedName) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.drop(vm)
	delete(b.refused, vm)
}

// waiting are the VMs that may be granted what they were refused when another VM gives
// up an address.
func (b *addressBook) waiting() []types.NamespacedName {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Collect(maps.Keys(b.refused))
}

func (b *addressBook) drop(vm types.NamespacedName) {
	for address, holder := range b.holder {
		if holder == vm {
			delete(b.holder, address)
		}
	}
}

// assign finds the addresses of a VM: those that it has or asks for, if nobody else has
// them, or else the lowest free one of each network. list yields all VMs that there are.
func (b *addressBook) assign(vm *v1alpha1.VirtualMachine, networks []netip.Prefix, list func() ([]v1alpha1.VirtualMachine, error)) ([]netip.Addr, *problem, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	all, err := list()
	if err != nil {
		return nil, nil, err
	}
	key := types.NamespacedName{Namespace: vm.Namespace, Name: vm.Name}
	taken := b.taken(vm, all)
	addresses := claimed(vm)
	var refused *problem
	if len(addresses) > 0 {
		refused = checkAddresses(vm, addresses, networks, taken)
	} else {
		addresses, refused = lowest(networks, taken)
	}
	if refused != nil {
		b.refused[key] = struct{}{}
		return nil, refused, nil
	}
	delete(b.refused, key)
	b.drop(key)
	for _, address := range addresses {
		b.holder[address] = key
	}
	return addresses, nil, nil
}

// taken are the addresses of all other VMs.
func (b *addressBook) taken(vm *v1alpha1.VirtualMachine, all []v1alpha1.VirtualMachine) map[netip.Addr]types.NamespacedName {
	own := types.NamespacedName{Namespace: vm.Namespace, Name: vm.Name}
	taken := map[netip.Addr]types.NamespacedName{}
	for i := range all {
		other := types.NamespacedName{Namespace: all[i].Namespace, Name: all[i].Name}
		if other == own {
			continue
		}
		for _, address := range parse(all[i].Status.Addresses) {
			taken[address] = other
		}
		for _, address := range claimed(&all[i]) {
			// Two that ask for the same at once: it is the older one's.
			if len(all[i].Spec.VMIPs) == 0 || !asks(vm, address) || older(&all[i], vm) {
				taken[address] = other
			}
		}
	}
	for address, holder := range b.holder {
		if holder != own {
			taken[address] = holder
		}
	}
	return taken
}

// freesAddresses passes what may leave an address to others. That a VM is gone, which
// does so too, is told by forget: until then its address is still its own.
func freesAddresses() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc: func(event.CreateEvent) bool { return false },
		DeleteFunc: func(event.DeleteEvent) bool { return false },
		UpdateFunc: func(e event.UpdateEvent) bool {
			before, isVM := e.ObjectOld.(*v1alpha1.VirtualMachine)
			after, stillIs := e.ObjectNew.(*v1alpha1.VirtualMachine)
			return isVM && stillIs && !(slices.Equal(before.Status.Addresses, after.Status.Addresses) && slices.Equal(claimed(before), claimed(after)))
		},
	}
}

// refusedAddresses are the VMs that wait for an address.
func (c *Controller) refusedAddresses(context.Context, client.Object) []reconcile.Request {
	var requests []reconcile.Request
	for _, vm := range c.given.waiting() {
		requests = append(requests, reconcile.Request{NamespacedName: vm})
	}
	return requests
}
