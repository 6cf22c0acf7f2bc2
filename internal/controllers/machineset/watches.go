package machineset

import (
	"context"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/machineset/planner"
)

const (
	// settle is how long events of Machines are collected before their set is reconciled: the
	// Machines of a set change many at a time.
	settle = 100 * time.Millisecond
	// settleFor is for how many Machines that is long enough. A pass reads all Machines of a set,
	// so it waits longer for more of them; else the cost of each would grow with their number.
	settleFor = 300
)

// machineEvents enqueues the sets that own a Machine, or may adopt it.
func (c *Controller) machineEvents() handler.EventHandler {
	type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]
	wake := func(ctx context.Context, q queue, objects ...client.Object) {
		for _, object := range objects {
			for _, request := range c.setsOf(ctx, object) {
				q.AddAfter(request, c.settling(request.NamespacedName))
			}
		}
	}
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q queue) { wake(ctx, q, e.Object) },
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q queue) { wake(ctx, q, e.Object) },
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) {
			if e.ObjectOld.GetResourceVersion() != e.ObjectNew.GetResourceVersion() {
				wake(ctx, q, e.ObjectOld, e.ObjectNew)
			}
		},
	}
}

// relevantChange lets through changes of a set that need a pass. The same condition with another
// message does not: this controller wrote it after a failure with a new text, and a pass at once
// would get around the rate limit.
func relevantChange() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		was, is := e.ObjectOld.(*v1alpha1.MachineSet), e.ObjectNew.(*v1alpha1.MachineSet)
		resync := was.ResourceVersion == is.ResourceVersion
		return resync || !equality.Semantic.DeepEqual(withoutMessages(was), withoutMessages(is))
	}}
}

// withoutMessages is a set without what every status write changes, and without the messages of its
// conditions.
func withoutMessages(set *v1alpha1.MachineSet) *v1alpha1.MachineSet {
	lean := *set
	lean.ResourceVersion, lean.ManagedFields, lean.Status.LastOperation = "", nil, v1alpha1.LastOperation{}
	lean.Status.Conditions = slices.Clone(set.Status.Conditions)
	for i := range lean.Status.Conditions {
		lean.Status.Conditions[i].Message = ""
	}
	return &lean
}

// settling is how long events are collected for a set.
func (c *Controller) settling(set client.ObjectKey) time.Duration {
	return settle * time.Duration(max(1, c.lastPass(set).machines/settleFor))
}

// setsOf returns the set that controls a Machine, or those that select it if nothing does.
func (c *Controller) setsOf(ctx context.Context, object client.Object) []reconcile.Request {
	if owner := metav1.GetControllerOfNoCopy(object); owner != nil {
		if owner.Kind != "MachineSet" {
			return nil
		}
		return []reconcile.Request{{NamespacedName: client.ObjectKey{Namespace: object.GetNamespace(), Name: owner.Name}}}
	}
	sets := &v1alpha1.MachineSetList{}
	if err := c.Client.List(ctx, sets, client.InNamespace(object.GetNamespace()), client.UnsafeDisableDeepCopy); err != nil {
		return nil // the cache ends with the process
	}
	var requests []reconcile.Request
	for i := range sets.Items {
		if planner.Selects(sets.Items[i].Spec.Selector, object.GetLabels()) {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&sets.Items[i])})
		}
	}
	return requests
}

// setsInBackOff returns the sets whose Machines of a class keep failing. The class may have been
// corrected.
func (c *Controller) setsInBackOff(ctx context.Context, class client.Object) []reconcile.Request {
	sets := &v1alpha1.MachineSetList{}
	if err := c.Client.List(ctx, sets, client.InNamespace(class.GetNamespace()), client.UnsafeDisableDeepCopy); err != nil {
		return nil // the cache ends with the process
	}
	var requests []reconcile.Request
	for i := range sets.Items {
		key := client.ObjectKeyFromObject(&sets.Items[i])
		if sets.Items[i].Spec.Template.Spec.Class.Name == class.GetName() && c.lastPass(key).backsOff {
			requests = append(requests, reconcile.Request{NamespacedName: key})
		}
	}
	return requests
}

// overlappingSets returns the sets that overlap with one that was created, changed or deleted, as it
// was and as it is. Where many overlap, those are left out that say so without naming it, or each
// new one would wake all others.
func (c *Controller) overlappingSets(ctx context.Context, object client.Object) []reconcile.Request {
	changed := object.(*v1alpha1.MachineSet)
	others, err := c.overlapping(ctx, changed)
	if err != nil {
		return nil // the cache ends with the process
	}
	var requests []reconcile.Request
	for _, other := range others {
		key := client.ObjectKeyFromObject(other)
		if len(others) <= mostNamed+1 || !c.lastPass(key).overlapsBeyond(changed.Name) {
			requests = append(requests, reconcile.Request{NamespacedName: key})
		}
	}
	return requests
}

// selectionChange lets through changes of who overlaps with whom: also a new controller, which the
// generation does not show.
func selectionChange() predicate.Predicate {
	return predicate.Funcs{
		GenericFunc: func(event.GenericEvent) bool { return false },
		UpdateFunc: func(e event.UpdateEvent) bool {
			return e.ObjectOld.GetGeneration() != e.ObjectNew.GetGeneration() ||
				planner.ControllerOf(e.ObjectOld) != planner.ControllerOf(e.ObjectNew)
		},
	}
}
