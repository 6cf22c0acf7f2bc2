// Package wake finds the Machines that a change of another object concerns.
package wake

import (
	"context"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/registry"
	"github.com/millwright-dev/millwright/internal/controllers/machine/inplace"
	"github.com/millwright-dev/millwright/internal/lifecycle/noderef"
	"github.com/millwright-dev/millwright/internal/lifecycle/ownership"
	"github.com/millwright-dev/millwright/internal/lifecycle/preservation"
	"github.com/millwright-dev/millwright/internal/lifecycle/scarcity"
	"github.com/millwright-dev/millwright/internal/pool/liveupdate"
	"github.com/millwright-dev/millwright/internal/reconcile/fieldindex"
)

// Machines finds Machines in a cache with the indexes of fieldindex.
type Machines struct{ Cache client.Reader }

// OfNode returns the Machines that name a Node, or that have its provider ID and name another one.
func (m Machines) OfNode(ctx context.Context, object client.Object) []reconcile.Request {
	requests := m.find(ctx, client.MatchingFields{fieldindex.MachineByNode: object.GetName()}, nil)
	id := object.(*corev1.Node).Spec.ProviderID
	if id == "" {
		return requests
	}
	return append(requests, m.find(ctx, client.MatchingFields{fieldindex.MachineByProviderID: id}, func(machine *v1alpha1.Machine) bool {
		named := machine.Labels[v1alpha1.NodeLabelKey]
		return named != "" && named != object.GetName()
	})...)
}

// Draining returns the Machines that name a node and are being deleted, are updated in place, or failed
// and are preserved. The status of those that are updated may say so late, which wakes them then.
func (m Machines) Draining(ctx context.Context, node string) []reconcile.Request {
	return m.find(ctx, client.MatchingFields{fieldindex.MachineByNode: node}, draining)
}

func draining(machine *v1alpha1.Machine) bool {
	return !machine.DeletionTimestamp.IsZero() || preservation.MayDrain(machine) || inplace.Draining(machine)
}

// OfClass returns the Machines of a class.
func (m Machines) OfClass(ctx context.Context, object client.Object) []reconcile.Request {
	return m.find(ctx, client.MatchingFields{fieldindex.MachineByClass: object.GetName()}, nil)
}

// WaitingForClass returns the Machines of a class that have no VM yet, or are being deleted, those of
// other classes without a VM that may fall back to it, and those whose driver is asked about an update to it.
func (m Machines) WaitingForClass(ctx context.Context, object client.Object) []reconcile.Request {
	name := object.GetName()
	requests := m.find(ctx, client.MatchingFields{fieldindex.MachineByClass: name}, func(machine *v1alpha1.Machine) bool {
		return !machine.DeletionTimestamp.IsZero() || !ownership.Established(machine)
	})
	return append(requests, m.find(ctx, nil, func(machine *v1alpha1.Machine) bool {
		waits := liveupdate.Asked(machine) == name || !ownership.Established(machine) && slices.Contains(scarcity.OfMachine(machine), name)
		return waits && machine.Spec.Class.Name != name
	})...)
}

// WaitingForSecret returns what WaitingForClass does for the classes of a Secret.
func (m Machines) WaitingForSecret(ctx context.Context, object client.Object) []reconcile.Request {
	classes := &v1alpha1.MachineClassList{}
	key := client.ObjectKeyFromObject(object).String()
	if err := m.Cache.List(ctx, classes, client.MatchingFields{fieldindex.ClassBySecret: key}, client.UnsafeDisableDeepCopy); err != nil {
		return nil
	}
	var requests []reconcile.Request
	for i := range classes.Items {
		requests = append(requests, m.WaitingForClass(ctx, &classes.Items[i])...)
	}
	return requests
}

// WaitingForDriver returns the Machines that may wait for the driver of that name to be registered: for
// their VM, or for the volumes of a node that is drained to be identified.
func (m Machines) WaitingForDriver(ctx context.Context, name string) []reconcile.Request {
	classes := &v1alpha1.MachineClassList{}
	if err := m.Cache.List(ctx, classes, client.UnsafeDisableDeepCopy); err != nil {
		return nil
	}
	var requests []reconcile.Request
	for i := range classes.Items {
		if registry.Serves(name, &classes.Items[i]) {
			fields := client.MatchingFields{fieldindex.MachineByClass: classes.Items[i].Name}
			requests = append(requests, m.find(ctx, fields, func(machine *v1alpha1.Machine) bool {
				return draining(machine) || !ownership.Established(machine)
			})...)
		}
	}
	return requests
}

// find returns the Machines that an index has, or all, and that are to be kept.
func (m Machines) find(ctx context.Context, fields client.MatchingFields, keep func(*v1alpha1.Machine) bool) []reconcile.Request {
	machines, options := &v1alpha1.MachineList{}, []client.ListOption{client.UnsafeDisableDeepCopy}
	if fields != nil {
		options = append(options, fields)
	}
	if err := m.Cache.List(ctx, machines, options...); err != nil {
		return nil // the cache ends with the process
	}
	var requests []reconcile.Request
	for i := range machines.Items {
		if machine := &machines.Items[i]; keep == nil || keep(machine) {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(machine)})
		}
	}
	return requests
}

// NodeChanges lets through all but heartbeats.
func NodeChanges() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		was, is := e.ObjectOld.(*corev1.Node), e.ObjectNew.(*corev1.Node)
		return noderef.ConditionsDiffer(was.Status.Conditions, is.Status.Conditions) ||
			!equality.Semantic.DeepEqual(was.Spec.Taints, is.Spec.Taints) ||
			!equality.Semantic.DeepEqual(was.Status.Capacity, is.Status.Capacity) ||
			was.Spec.Unschedulable != is.Spec.Unschedulable ||
			!maps.Equal(was.Labels, is.Labels) ||
			!maps.Equal(was.Annotations, is.Annotations) ||
			!equality.Semantic.DeepEqual(was.Finalizers, is.Finalizers) ||
			was.DeletionTimestamp.IsZero() != is.DeletionTimestamp.IsZero() ||
			was.Spec.ProviderID != is.Spec.ProviderID
	}}
}

// CapacityChanges lets through changes of the virtual capacity.
func CapacityChanges() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc: func(event.CreateEvent) bool { return false }, // WaitingForClass, or a Machine's own event
		DeleteFunc: func(event.DeleteEvent) bool { return false },
		UpdateFunc: func(e event.UpdateEvent) bool {
			was, is := e.ObjectOld.(*v1alpha1.MachineClass), e.ObjectNew.(*v1alpha1.MachineClass)
			return !equality.Semantic.DeepEqual(noderef.VirtualCapacity(was), noderef.VirtualCapacity(is))
		},
	}
}

// ToUpdate returns the Machines of a class that may have an update strategy.
func (m Machines) ToUpdate(ctx context.Context, object client.Object) []reconcile.Request {
	_, all := object.GetAnnotations()[v1alpha1.AnnotationKeyUpdateStrategy]
	return m.find(ctx, client.MatchingFields{fieldindex.MachineByClass: object.GetName()}, func(machine *v1alpha1.Machine) bool {
		_, own := machine.Annotations[v1alpha1.AnnotationKeyUpdateStrategy]
		return all || own
	})
}

// UpdateChanges lets through what concerns the update of VMs to a class: its update strategy, and what VMs are
// made from.
func UpdateChanges() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc: func(event.CreateEvent) bool { return false }, // a Machine's own event
		DeleteFunc: func(event.DeleteEvent) bool { return false },
		UpdateFunc: func(e event.UpdateEvent) bool {
			was, is := e.ObjectOld.(*v1alpha1.MachineClass), e.ObjectNew.(*v1alpha1.MachineClass)
			return was.Annotations[v1alpha1.AnnotationKeyUpdateStrategy] != is.Annotations[v1alpha1.AnnotationKeyUpdateStrategy] ||
				was.Generation != is.Generation && liveupdate.Digest(was) != liveupdate.Digest(is)
		},
	}
}

// ClassChanges lets through a new spec, and the finalizer that creations wait for.
func ClassChanges() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		return e.ObjectOld.GetGeneration() != e.ObjectNew.GetGeneration() ||
			!equality.Semantic.DeepEqual(e.ObjectOld.GetFinalizers(), e.ObjectNew.GetFinalizers())
	}}
}

// SecretChanges lets through all but changes of the metadata.
func SecretChanges() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		return !equality.Semantic.DeepEqual(e.ObjectOld.(*corev1.Secret).Data, e.ObjectNew.(*corev1.Secret).Data)
	}}
}
