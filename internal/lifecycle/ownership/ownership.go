// Package ownership decides which object owns an instance or a node that several objects name. This happens
// because drivers need not distinguish API groups, and because users edit provider IDs and labels.
package ownership

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/reconcile/fieldindex"
)

// KindMachine is the kind of owners in machine.sapcloud.io.
const KindMachine = "Machine"

// Owner is an object of either API group that has an instance, or names one as its own.
type Owner struct {
	Kind string
	Key  types.NamespacedName
	UID  types.UID
	// ProviderID is the provider ID in the object's spec. It is empty if the spec has none.
	ProviderID string
	// Certain reports that a controller gave the instance to the object. If false, a user may have written the
	// ID.
	Certain bool
	// Deleting reports that the object is being deleted.
	Deleting bool
	// Since is the creation time of the object.
	Since time.Time
}

// String returns the kind, namespace and name.
func (o Owner) String() string { return o.Kind + " " + o.Key.String() }

// Before reports whether o takes precedence over another owner of the same instance. A certain owner comes
// first, then the older one, then the first by name.
func (o Owner) Before(other Owner) bool {
	switch {
	case o.Certain != other.Certain:
		return o.Certain
	case !o.Since.Equal(other.Since):
		return o.Since.Before(other.Since)
	}
	return o.String() < other.String()
}

// OfMachine returns the Machine as the owner of the instance that it names.
func OfMachine(machine *v1alpha1.Machine) Owner {
	owner := ofObject(KindMachine, machine)
	owner.ProviderID, owner.Certain = machine.Spec.ProviderID, Established(machine)
	return owner
}

// OfMillwrightMachine returns the MillwrightMachine as the owner of the instance with the given ID.
func OfMillwrightMachine(machine *infrav1.MillwrightMachine, providerID string) Owner {
	owner := ofObject(infrav1.MillwrightMachineKind, machine)
	owner.ProviderID, owner.Certain = machine.Spec.ProviderID, providerID != "" && machine.Status.ProviderID == providerID
	return owner
}

func ofObject(kind string, object client.Object) Owner {
	return Owner{
		Kind: kind, Key: client.ObjectKeyFromObject(object), UID: object.GetUID(),
		Deleting: !object.GetDeletionTimestamp().IsZero(), Since: object.GetCreationTimestamp().Time,
	}
}

// Established reports whether the Machine has an instance.
func Established(machine *v1alpha1.Machine) bool {
	return machine.Spec.ProviderID != "" && Settled(machine)
}

// Settled reports whether the phase of a Machine implies that its instance was created. The phase Terminating
// does not imply it if the Machine is not being deleted, because it was then restored from a backup.
func Settled(machine *v1alpha1.Machine) bool {
	switch machine.Status.CurrentStatus.Phase {
	case "", v1alpha1.MachineCrashLoopBackOff:
		return false
	case v1alpha1.MachineTerminating:
		return !machine.DeletionTimestamp.IsZero()
	default:
		return true
	}
}

// Finder returns the objects of one API group that name the instance with a provider ID.
type Finder func(ctx context.Context, namespace, providerID string) ([]Owner, error)

// Machines returns a Finder for Machines in the namespace. The cache needs the index
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

// MillwrightMachineByProviderID is a cache index of MillwrightMachines by the provider IDs in their spec or
// status.
const MillwrightMachineByProviderID = "millwrightmachine.providerID"

// ProviderIDs returns the values of MillwrightMachineByProviderID.
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

// MillwrightMachines returns a Finder for MillwrightMachines in all namespaces, because their provider IDs are
// unique. The cache needs the index MillwrightMachineByProviderID.
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

// Index finds other owners of an instance with each Finder that is not nil. An object of another API group
// counts only if it is in the same namespace, so that users of other namespaces cannot claim the instance.
type Index []Finder

// Conflicting returns an owner of the instance that takes precedence over ours, or nil if there is none. While
// ours names no instance, any object of another API group takes precedence, because the driver found the
// instance by a name that both may have. An object of another namespace then takes precedence only if it is
// certain: a user there may have written the ID before the instance was created.
func (i Index) Conflicting(ctx context.Context, ours Owner, providerID string) (*Owner, error) {
	return i.first(ctx, ours, providerID, func(other Owner) bool {
		if ours.ProviderID == "" && other.Key.Namespace != ours.Key.Namespace {
			return other.Certain && other.Before(ours)
		}
		return ours.ProviderID == "" && other.Kind != ours.Kind || other.Before(ours)
	})
}

// Sharing returns an owner that still needs the instance when ours is deleted, or nil if there is none. If ours
// is certain, owners that are not certain do not count.
func (i Index) Sharing(ctx context.Context, ours Owner, providerID string) (*Owner, error) {
	return i.first(ctx, ours, providerID, func(other Owner) bool {
		return !other.Deleting && (other.Certain || !ours.Certain)
	})
}

// Certain returns an owner that is certain while ours is not, or nil if there is none.
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
			foreign := other.Kind != ours.Kind && other.Key.Namespace != ours.Key.Namespace
			if other.UID != ours.UID && !foreign && counts(other) {
				return &other, nil
			}
		}
	}
	return nil, nil
}

// ConflictingNode returns the other Machine that owns the node although ours also names it, or nil if there is
// none. A node belongs to the Machine with its provider ID, or else to the first Machine according to Before.
// The cache needs the index fieldindex.MachineByNode.
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
