// Package ownership decides whose an instance or a node is that several objects name.
//
// Drivers need not tell the objects of two APIs apart, and users edit provider IDs and labels
// by hand. Without one rule, two objects would take an instance from each other, or the
// deletion of one would take it from the other.
package ownership

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// KindMachine is the kind of the owners of machine.sapcloud.io.
const KindMachine = "Machine"

// Owner is an object of either API that has an instance, or names one as its own.
type Owner struct {
	// Kind, Key and UID say which object it is.
	Kind string
	Key  types.NamespacedName
	UID  types.UID
	// ProviderID is that of the instance in the object's spec; empty if it names none.
	ProviderID string
	// Certain reports that the object got the instance, rather than that its ID was written
	// there by somebody.
	Certain bool
	// Deleting reports that the object is being deleted.
	Deleting bool
	// Since is when the object was created.
	Since time.Time
}

// String returns kind, namespace and name.
func (o Owner) String() string { return o.Kind + " " + o.Key.String() }

// Before reports whether o has the better right to an instance that both name: the one which
// is certain, else the one which was created first, else the one whose name comes first.
func (o Owner) Before(other Owner) bool {
	switch {
	case o.Certain != other.Certain:
		return o.Certain
	case !o.Since.Equal(other.Since):
		return o.Since.Before(other.Since)
	}
	return o.String() < other.String()
}

// OfMachine returns the Machine as an owner of the instance that it names.
func OfMachine(machine *v1alpha1.Machine) Owner {
	owner := ofObject(KindMachine, machine)
	owner.ProviderID, owner.Certain = machine.Spec.ProviderID, Established(machine)
	return owner
}

// OfMillwrightMachine returns the MillwrightMachine as an owner of the instance with that ID.
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

// Established reports whether the Machine has an instance that need not be looked for.
func Established(machine *v1alpha1.Machine) bool {
	return machine.Spec.ProviderID != "" && Settled(machine)
}

// Settled reports whether the phase of a Machine says that its instance was created. Terminating
// does not if nobody deletes the Machine: it was restored from a backup without its deletion.
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
