package machine

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
	"github.com/millwright-dev/millwright/internal/lifecycle/noderef"
	"github.com/millwright-dev/millwright/internal/lifecycle/ownership"
	"github.com/millwright-dev/millwright/internal/lifecycle/preservation"
	"github.com/millwright-dev/millwright/internal/lifecycle/scarcity"
	"github.com/millwright-dev/millwright/internal/pool/inplaceupdate"
	"github.com/millwright-dev/millwright/internal/pool/liveupdate"
	"github.com/millwright-dev/millwright/internal/reconcile/fieldindex"
)

// mapper maps an object to requests for the Machines that a change of the object affects. The cache needs the
// indexes of package fieldindex.
type mapper struct{ cache client.Reader }

// ofNode returns the Machines that name a Node, and those that have its provider ID but name another Node.
func (m mapper) ofNode(ctx context.Context, object client.Object) []reconcile.Request {
	requests := m.find(ctx, client.MatchingFields{fieldindex.MachineByNode: object.GetName()}, nil)
	id := object.(*corev1.Node).Spec.ProviderID
	if id == "" {
		return requests
	}
	return append(requests, m.find(ctx, client.MatchingFields{fieldindex.MachineByProviderID: id}, func(machine *v1alpha1.Machine) bool {
		named := machine.NodeName()
		return named != "" && named != object.GetName()
	})...)
}

// draining returns the Machines that name a node and may drain it: Machines that are being deleted, that are
// updated in place, or that failed and are preserved. The status may show an in-place update late; that change
// of the status then triggers a pass.
func (m mapper) draining(ctx context.Context, node string) []reconcile.Request {
	return m.find(ctx, client.MatchingFields{fieldindex.MachineByNode: node}, mayDrain)
}

func mayDrain(machine *v1alpha1.Machine) bool {
	return !machine.DeletionTimestamp.IsZero() || preservation.MayDrain(machine) || inplaceupdate.State(machine) == v1alpha1.SelectedForUpdate
}

// ofClass returns the Machines of a class.
func (m mapper) ofClass(ctx context.Context, object client.Object) []reconcile.Request {
	return m.find(ctx, client.MatchingFields{fieldindex.MachineByClass: object.GetName()}, nil)
}

// waitingForClass returns the Machines that may be waiting for a change of a class: Machines of the class that
// have no VM yet or are being deleted, Machines of other classes that have no VM yet and may fall back to the
// class, and Machines for which a live update to the class is planned.
func (m mapper) waitingForClass(ctx context.Context, object client.Object) []reconcile.Request {
	name := object.GetName()
	requests := m.find(ctx, client.MatchingFields{fieldindex.MachineByClass: name}, func(machine *v1alpha1.Machine) bool {
		return !machine.DeletionTimestamp.IsZero() || !ownership.Established(machine)
	})
	return append(requests, m.find(ctx, nil, func(machine *v1alpha1.Machine) bool {
		waits := liveupdate.RequestedClass(machine) == name || !ownership.Established(machine) && slices.Contains(scarcity.OfMachine(machine), name)
		return waits && machine.Spec.Class.Name != name
	})...)
}

// waitingForSecret returns the Machines that waitingForClass returns for the classes that use a Secret.
func (m mapper) waitingForSecret(ctx context.Context, object client.Object) []reconcile.Request {
	classes := &v1alpha1.MachineClassList{}
	key := client.ObjectKeyFromObject(object).String()
	if err := m.cache.List(ctx, classes, client.MatchingFields{fieldindex.ClassBySecret: key}, client.UnsafeDisableDeepCopy); err != nil {
		return nil
	}
	var requests []reconcile.Request
	for i := range classes.Items {
		requests = append(requests, m.waitingForClass(ctx, &classes.Items[i])...)
	}
	return requests
}

// waitingForDriver returns the Machines that may be waiting for the named driver to be registered, to create
// their VM or to identify the volumes of a node that is being drained.
func (m mapper) waitingForDriver(ctx context.Context, name string) []reconcile.Request {
	classes := &v1alpha1.MachineClassList{}
	if err := m.cache.List(ctx, classes, client.UnsafeDisableDeepCopy); err != nil {
		return nil
	}
	var requests []reconcile.Request
	for i := range classes.Items {
		if registry.Serves(name, &classes.Items[i]) {
			fields := client.MatchingFields{fieldindex.MachineByClass: classes.Items[i].Name}
			requests = append(requests, m.find(ctx, fields, func(machine *v1alpha1.Machine) bool {
				return mayDrain(machine) || !ownership.Established(machine)
			})...)
		}
	}
	return requests
}

// find returns requests for the Machines that match the index fields and for which keep returns true. If fields
// or keep is nil, it does not restrict the result.
func (m mapper) find(ctx context.Context, fields client.MatchingFields, keep func(*v1alpha1.Machine) bool) []reconcile.Request {
	machines, options := &v1alpha1.MachineList{}, []client.ListOption{client.UnsafeDisableDeepCopy}
	if fields != nil {
		options = append(options, fields)
	}
	if err := m.cache.List(ctx, machines, options...); err != nil {
		return nil // reads of the cache fail only when the process terminates
	}
	var requests []reconcile.Request
	for i := range machines.Items {
		if machine := &machines.Items[i]; keep == nil || keep(machine) {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(machine)})
		}
	}
	return requests
}

// nodeChanges ignores heartbeats.
func nodeChanges() predicate.Predicate {
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

// capacityChanges selects changes to the virtual capacity.
func capacityChanges() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc: func(event.CreateEvent) bool { return false }, // waitingForClass or the Machine's own event suffices
		DeleteFunc: func(event.DeleteEvent) bool { return false },
		UpdateFunc: func(e event.UpdateEvent) bool {
			was, is := e.ObjectOld.(*v1alpha1.MachineClass), e.ObjectNew.(*v1alpha1.MachineClass)
			return !equality.Semantic.DeepEqual(noderef.VirtualCapacity(was), noderef.VirtualCapacity(is))
		},
	}
}

// toLiveUpdate returns the Machines of a class that may have an update strategy.
func (m mapper) toLiveUpdate(ctx context.Context, object client.Object) []reconcile.Request {
	_, all := object.GetAnnotations()[v1alpha1.AnnotationKeyUpdateStrategy]
	return m.find(ctx, client.MatchingFields{fieldindex.MachineByClass: object.GetName()}, func(machine *v1alpha1.Machine) bool {
		_, own := machine.Annotations[v1alpha1.AnnotationKeyUpdateStrategy]
		return all || own
	})
}

// liveUpdateChanges selects changes to a class that may require live updates: changes to its update strategy
// and to the fields from which VMs are created.
func liveUpdateChanges() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc: func(event.CreateEvent) bool { return false }, // the Machine's own event suffices
		DeleteFunc: func(event.DeleteEvent) bool { return false },
		UpdateFunc: func(e event.UpdateEvent) bool {
			was, is := e.ObjectOld.(*v1alpha1.MachineClass), e.ObjectNew.(*v1alpha1.MachineClass)
			return was.Annotations[v1alpha1.AnnotationKeyUpdateStrategy] != is.Annotations[v1alpha1.AnnotationKeyUpdateStrategy] ||
				was.Generation != is.Generation && liveupdate.Digest(was) != liveupdate.Digest(is)
		},
	}
}

// classChanges selects changes to the spec, and to the finalizer, which creations wait for.
func classChanges() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		return e.ObjectOld.GetGeneration() != e.ObjectNew.GetGeneration() ||
			!equality.Semantic.DeepEqual(e.ObjectOld.GetFinalizers(), e.ObjectNew.GetFinalizers())
	}}
}

// secretChanges ignores changes to the metadata.
func secretChanges() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		return !equality.Semantic.DeepEqual(e.ObjectOld.(*corev1.Secret).Data, e.ObjectNew.(*corev1.Secret).Data)
	}}
}
