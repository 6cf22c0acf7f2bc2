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
	"github.com/millwright-dev/millwright/internal/index"
	"github.com/millwright-dev/millwright/internal/node"
)

// ofNode finds the Machines of a Node.
func (c *Controller) ofNode(ctx context.Context, object client.Object) []reconcile.Request {
	return c.find(ctx, client.MatchingFields{index.MachineByNode: object.GetName()}, nil)
}

// waitingForClass finds the Machines that a change of their class may help on.
func (c *Controller) waitingForClass(ctx context.Context, object client.Object) []reconcile.Request {
	return c.find(ctx, client.MatchingFields{index.MachineByClass: object.GetName()}, needsClass)
}

// waitingForSecret finds the Machines that a change of one of their Secrets may help on.
func (c *Controller) waitingForSecret(ctx context.Context, object client.Object) []reconcile.Request {
	classes := &v1alpha1.MachineClassList{}
	key := client.ObjectKeyFromObject(object).String()
	if err := c.Client.List(ctx, classes, client.MatchingFields{index.ClassBySecret: key}, client.UnsafeDisableDeepCopy); err != nil {
		return nil
	}
	var requests []reconcile.Request
	for i := range classes.Items {
		requests = append(requests, c.waitingForClass(ctx, &classes.Items[i])...)
	}
	return requests
}

// needsClass tells whether the next pass over a Machine will use its class.
func needsClass(machine *v1alpha1.Machine) bool {
	return !machine.DeletionTimestamp.IsZero() || !established(machine)
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

// nodeChanges lets through what concerns a Machine; a kubelet's heartbeats do not.
func nodeChanges() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		was, is := e.ObjectOld.(*corev1.Node), e.ObjectNew.(*corev1.Node)
		return node.ConditionsDiffer(was.Status.Conditions, is.Status.Conditions) ||
			!equality.Semantic.DeepEqual(was.Spec.Taints, is.Spec.Taints) ||
			!maps.Equal(was.Labels, is.Labels) ||
			!maps.Equal(was.Annotations, is.Annotations) ||
			!equality.Semantic.DeepEqual(was.Finalizers, is.Finalizers) ||
			was.DeletionTimestamp.IsZero() != is.DeletionTimestamp.IsZero() ||
			was.Spec.ProviderID != is.Spec.ProviderID
	}}
}

// classChanges lets through new content, and the finalizer that creations wait for.
func classChanges() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		return e.ObjectOld.GetGeneration() != e.ObjectNew.GetGeneration() ||
			!equality.Semantic.DeepEqual(e.ObjectOld.GetFinalizers(), e.ObjectNew.GetFinalizers())
	}}
}

// secretChanges lets through new content.
func secretChanges() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		return !equality.Semantic.DeepEqual(e.ObjectOld.(*corev1.Secret).Data, e.ObjectNew.(*corev1.Secret).Data)
	}}
}
