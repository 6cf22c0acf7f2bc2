package ownership

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/reconcile/fieldindex"
)

// Finder returns the objects of one API that name an instance, by its provider ID.
type Finder func(ctx context.Context, namespace, providerID string) ([]Owner, error)

// Machines returns a Finder of Machines in the namespace. The cache needs the index
// fieldindex.MachineByProviderID.
func Machines(cache client.Reader) Finder {
	return func(ctx context.Context, namespace, providerID string) ([]Owner, error) {
		list := &v1alpha1.MachineList{}
		err := cache.List(ctx, list, client.InNamespace(namespace),
			client.MatchingFields{fieldindex.MachineByProviderID: providerID}, client.UnsafeDisableDeepCopy)
		if err != nil {
			return nil, fmt.Errorf("finding the Machines of instance %s: %w", providerID, err)
		}
		owners := make([]Owner, len(list.Items))
		for i := range list.Items {
			owners[i] = OfMachine(&list.Items[i])
		}
		return owners, nil
	}
}

// MillwrightMachineByProviderID is an index of MillwrightMachines in the cache: by the IDs of
// the instances that they name, in spec or status.
const MillwrightMachineByProviderID = "millwrightmachine.providerID"

// ProviderIDs are the values of MillwrightMachineByProviderID.
func ProviderIDs(object client.Object) []string {
	machine := object.(*infrav1.MillwrightMachine)
	var ids []string
	for _, id := range []string{machine.Spec.ProviderID, machine.Status.ProviderID} {
		if id != "" && !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	return ids
}

// MillwrightMachines returns a Finder of MillwrightMachines in all namespaces: their provider
// IDs are unique. The cache needs the index MillwrightMachineByProviderID.
func MillwrightMachines(cache client.Reader) Finder {
	return func(ctx context.Context, _, providerID string) ([]Owner, error) {
		list := &infrav1.MillwrightMachineList{}
		err := cache.List(ctx, list, client.MatchingFields{MillwrightMachineByProviderID: providerID}, client.UnsafeDisableDeepCopy)
		if err != nil {
			return nil, fmt.Errorf("finding the MillwrightMachines of instance %s: %w", providerID, err)
		}
		owners := make([]Owner, len(list.Items))
		for i := range list.Items {
			owners[i] = OfMillwrightMachine(&list.Items[i], providerID)
		}
		return owners, nil
	}
}

// Index finds the other owners of instances, by asking each Finder that is not nil.
type Index []Finder

// Conflicting returns an owner that has a better right to the instance than ours; nil if there
// is none. Any object of another API has, while ours names no instance: then the driver has
// found this one by a name that both may have.
func (i Index) Conflicting(ctx context.Context, ours Owner, providerID string) (*Owner, error) {
	return i.first(ctx, ours, providerID, func(other Owner) bool {
		return ours.ProviderID == "" && other.Kind != ours.Kind || other.Before(ours)
	})
}

// Sharing returns an owner that keeps the instance when ours is deleted; nil if there is none.
// One that only names the instance does not count if ours is certain.
func (i Index) Sharing(ctx context.Context, ours Owner, providerID string) (*Owner, error) {
	return i.first(ctx, ours, providerID, func(other Owner) bool {
		return !other.Deleting && (other.Certain || !ours.Certain)
	})
}

// Certain returns an owner whose the instance is for certain, while it is not ours; nil if
// there is none.
func (i Index) Certain(ctx context.Context, ours Owner, providerID string) (*Owner, error) {
	return i.first(ctx, ours, providerID, func(other Owner) bool { return other.Certain && !ours.Certain })
}

func (i Index) first(ctx context.Context, ours Owner, providerID string, counts func(Owner) bool) (*Owner, error) {
	if providerID == "" {
		return nil, nil
	}
	for _, find := range i {
		if find == nil {
			continue
		}
		owners, err := find(ctx, ours.Key.Namespace, providerID)
		if err != nil {
			return nil, err
		}
		for _, other := range owners {
			if other.UID != ours.UID && counts(other) {
				return &other, nil
			}
		}
	}
	return nil, nil
}

// ConflictingNode returns the Machine that the node belongs to although ours names the node
// too; nil if there is none. That is the one whose instance the node says it is, else the one
// with the better right by Before. The cache needs the index fieldindex.MachineByNode.
func ConflictingNode(ctx context.Context, cache client.Reader, ours *v1alpha1.Machine, node *corev1.Node) (*v1alpha1.Machine, error) {
	list := &v1alpha1.MachineList{}
	err := cache.List(ctx, list, client.InNamespace(ours.Namespace),
		client.MatchingFields{fieldindex.MachineByNode: node.Name}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, fmt.Errorf("finding the machines of node %s: %w", node.Name, err)
	}
	ofNode := func(machine *v1alpha1.Machine) Owner {
		owner := ofObject(KindMachine, machine)
		owner.Certain = node.Spec.ProviderID != "" && node.Spec.ProviderID == machine.Spec.ProviderID
		return owner
	}
	for i := range list.Items {
		if other := &list.Items[i]; other.UID != ours.UID && ofNode(other).Before(ofNode(ours)) {
			return other, nil
		}
	}
	return nil, nil
}
