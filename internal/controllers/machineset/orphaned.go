package machineset

import (
	"context"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// orphaning reports whether a set is being deleted without its Machines. The garbage collector
// lets go of those that it knows, and takes its finalizer from the set after that.
func orphaning(set *v1alpha1.MachineSet) bool {
	return !set.DeletionTimestamp.IsZero() && slices.Contains(set.Finalizers, metav1.FinalizerOrphanDependents)
}

// deletions remembers which sets are deleted without their Machines, for as long as they exist,
// and wakes none: the finalizer that says so may come and go while a pass makes a Machine, of
// which the garbage collector does not know yet. Every version of a set passes by here; a pass
// sees only the last one. A process that starts after the finalizer is gone does not know.
func (c *Controller) deletions() handler.EventHandler {
	type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]
	note := func(object client.Object) {
		if set := object.(*v1alpha1.MachineSet); orphaning(set) {
			c.orphaned.Store(set.UID, struct{}{})
		}
	}
	return handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, _ queue) { note(e.Object) },
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, _ queue) { note(e.ObjectNew) },
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, _ queue) { c.orphaned.Delete(e.Object.GetUID()) },
	}
}

// releaseAll lets go of the Machines that the garbage collector did not know when it let go of
// the others.
func releaseAll(f facts) []operation {
	var operations []operation
	for _, machine := range f.owned {
		operations = append(operations, operation{action: release, machine: machine, reason: "the machine set is deleted without its machines"})
	}
	return byName(operations)
}
