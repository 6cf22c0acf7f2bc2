package machine

import (
	"context"
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/drain"
	"github.com/millwright-dev/millwright/internal/lifecycle/noderef"
	"github.com/millwright-dev/millwright/internal/lifecycle/ownership"
	"github.com/millwright-dev/millwright/internal/reconcile/fieldindex"
)

// ofNode returns the Machines that name a Node, or that have its provider ID and name another one.
func (c *Controller) ofNode(ctx context.Context, object client.Object) []reconcile.Request {
	requests := c.find(ctx, client.MatchingFields{fieldindex.MachineByNode: object.GetName()}, nil)
	id := object.(*corev1.Node).Spec.ProviderID
	if id == "" {
		return requests
	}
	return append(requests, c.find(ctx, client.MatchingFields{fieldindex.MachineByProviderID: id}, func(machine *v1alpha1.Machine) bool {
		named := machine.Labels[v1alpha1.NodeLabelKey]
		return named != "" && named != object.GetName()
	})...)
}

func (c *Controller) drainEvents() drain.Events {
	return drain.Events{Draining: c.draining, Drainer: c.Drain.Drainer}
}

func (c *Controller) draining(ctx context.Context, node string) []reconcile.Request {
	return c.find(ctx, client.MatchingFields{fieldindex.MachineByNode: node}, func(machine *v1alpha1.Machine) bool {
		return !machine.DeletionTimestamp.IsZero()
	})
}

func (c *Controller) ofClass(ctx context.Context, object client.Object) []reconcile.Request {
	return c.find(ctx, client.MatchingFields{fieldindex.MachineByClass: object.GetName()}, nil)
}

func (c *Controller) waitingForClass(ctx context.Context, object client.Object) []reconcile.Request {
	return c.find(ctx, client.MatchingFields{fieldindex.MachineByClass: object.GetName()}, func(machine *v1alpha1.Machine) bool {
		return !machine.DeletionTimestamp.IsZero() || !ownership.Established(machine)
	})
}

func (c *Controller) waitingForSecret(ctx context.Context, object client.Object) []reconcile.Request {
	classes := &v1alpha1.MachineClassList{}
	key := client.ObjectKeyFromObject(object).String()
	if err := c.Client.List(ctx, classes, client.MatchingFields{fieldindex.ClassBySecret: key}, client.UnsafeDisableDeepCopy); err != nil {
		return nil
	}
	var requests []reconcile.Request
	for i := range classes.Items {
		requests = append(requests, c.waitingForClass(ctx, &classes.Items[i])...)
	}
	return requests
}

func (c *Controller) find(ctx context.Context, fields client.MatchingFields, keep func(*v1alpha1.Machine) bool) []reconcile.Request {
	machines := &v1alpha1.MachineList{}
	if err := c.Client.List(ctx, machines, fields, client.UnsafeDisableDeepCopy); err != nil {
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

// nodeChanges lets through all but heartbeats.
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

func capacityChanges() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc: func(event.CreateEvent) bool { return false }, // waitingForClass, or a Machine's own event
		DeleteFunc: func(event.DeleteEvent) bool { return false },
		UpdateFunc: func(e event.UpdateEvent) bool {
			was, is := e.ObjectOld.(*v1alpha1.MachineClass), e.ObjectNew.(*v1alpha1.MachineClass)
			return !equality.Semantic.DeepEqual(virtualCapacity(was), virtualCapacity(is))
		},
	}
}

// classChanges lets through a new spec, and the finalizer that creations wait for.
func classChanges() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		return e.ObjectOld.GetGeneration() != e.ObjectNew.GetGeneration() ||
			!equality.Semantic.DeepEqual(e.ObjectOld.GetFinalizers(), e.ObjectNew.GetFinalizers())
	}}
}

func secretChanges() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		return !equality.Semantic.DeepEqual(e.ObjectOld.(*corev1.Secret).Data, e.ObjectNew.(*corev1.Secret).Data)
	}}
}
