package virtualmachine

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/ipam"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
)

// addresses assigns each VM addresses that no other VM has.
type addresses struct {
	*cluster
	allocator *ipam.Allocator
	claims    *addressClaims
}

// assign ensures that the VM has addresses that no other VM has.
func (a *addresses) assign(ctx context.Context, s *scope) flow.Result {
	given, missing, err := a.claims.given(ctx, s)
	if err != nil {
		return flow.Fail(err)
	}
	if missing != nil {
		return s.missing(missing)
	}
	has := ipam.Of(s.vm)
	if len(has) > 0 && slices.Equal(has, s.vm.Status.Addresses) && (len(given) == 0 || slices.Equal(has, ipam.TextsOf(given))) {
		s.addresses = has
		return flow.Continue() // an earlier pass checked them
	}
	addresses, err := a.allocator.Allocate(s.vm, a.holders(ctx), given...)
	if unavailable, is := errors.AsType[*ipam.UnavailableError](err); is {
		return s.blocked(causef(reasonAddress, "%v", unavailable))
	}
	if err != nil {
		return flow.Fail(err)
	}
	s.addresses = addresses
	before := s.vm.DeepCopy()
	annotateAddresses(s.vm, addresses)
	return flow.Fail(a.patch(ctx, s.vm, before))
}

// annotateAddresses stores assigned addresses in an annotation. Addresses that the spec requests are not stored.
func annotateAddresses(vm *v1alpha1.VirtualMachine, addresses []string) {
	if len(vm.Spec.VMIPs) == 0 && len(addresses) > 0 {
		metav1.SetMetaDataAnnotation(&vm.ObjectMeta, v1alpha1.AnnotationAddresses, strings.Join(addresses, ","))
	}
}

// holders finds the VMs of this controller that have or request an address, and the guests that it has started. It reads
// from the cache. VMs and guests of another controller are left out: they may have the same address, because guest
// networks are behind their hypervisors.
func (a *addresses) holders(ctx context.Context) ipam.Holders {
	return ipam.Holders{
		VMs:    func(address netip.Addr) ([]v1alpha1.VirtualMachine, error) { return a.vms(ctx, address) },
		Guests: func(address netip.Addr) ([]types.NamespacedName, error) { return a.guests(ctx, address) },
	}
}

func (a *addresses) vms(ctx context.Context, address netip.Addr) ([]v1alpha1.VirtualMachine, error) {
	list := &v1alpha1.VirtualMachineList{}
	if err := a.client.List(ctx, list, client.MatchingFields{indexAddress: address.String()}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing virtual machines with address %s: %w", address, err)
	}
	return slices.DeleteFunc(list.Items, func(vm v1alpha1.VirtualMachine) bool { return a.installation.otherController(&vm) != "" }), nil
}

// guests returns the VMs whose hypervisors this controller has started with an address. The Pods decide, because the
// annotations of a VM may have been edited while its guest is running, and the VM may have been deleted by force.
func (a *addresses) guests(ctx context.Context, address netip.Addr) ([]types.NamespacedName, error) {
	list := &corev1.PodList{}
	if err := a.client.List(ctx, list, client.MatchingFields{indexGuestAddress: address.String()}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing pods with address %s: %w", address, err)
	}
	var guests []types.NamespacedName
	for i := range list.Items {
		pod := &list.Items[i]
		if controller := pod.Annotations[v1alpha1.AnnotationController]; controller == string(a.installation) {
			guests = append(guests, types.NamespacedName{Namespace: pod.Namespace, Name: metav1.GetControllerOfNoCopy(pod).Name})
		}
	}
	return guests, nil
}

// requestsForRefused returns a request for each VM whose last address allocation failed.
func (a *addresses) requestsForRefused(context.Context, client.Object) []reconcile.Request {
	var requests []reconcile.Request
	for _, vm := range a.allocator.Refused() {
		requests = append(requests, reconcile.Request{NamespacedName: vm})
	}
	return requests
}

// forget releases the addresses of a VM that was deleted or belongs to another controller, and requests passes for the
// VMs whose last address allocation failed.
func (a *addresses) forget(vm types.NamespacedName) {
	a.allocator.Forget(vm)
	for _, other := range a.allocator.Refused() {
		a.queue.add(other, 0)
	}
}
