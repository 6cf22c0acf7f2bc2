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
	"github.com/millwright-dev/millwright/internal/pool/scale"
)

const (
	// settleTime is how long events of a set's Machines are collected, since many Machines change together.
	settleTime = 100 * time.Millisecond
	// machinesPerSettleTime is the number of Machines for which settleTime is sufficient. A pass reads all
	// Machines of a set, so the time grows with their number. Otherwise the cost per Machine would grow.
	machinesPerSettleTime = 300
)

// machineEvents enqueues the sets that own a Machine or may adopt it.
func (c *Controller) machineEvents() handler.EventHandler {
	type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]
	enqueue := func(ctx context.Context, q queue, objects ...client.Object) {
		for _, object := range objects {
			for _, request := range c.setsOf(ctx, object) {
				machines := c.lastPass(request.NamespacedName).machines
				q.AddAfter(request, settleTime*time.Duration(max(1, machines/machinesPerSettleTime)))
			}
		}
	}
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q queue) { enqueue(ctx, q, e.Object) },
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q queue) { enqueue(ctx, q, e.Object) },
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) {
			if e.ObjectOld.GetResourceVersion() != e.ObjectNew.GetResourceVersion() {
				enqueue(ctx, q, e.ObjectOld, e.ObjectNew)
			}
		},
	}
}

// relevantChange selects changes of a set that require a pass. A new message of an existing condition does not,
// since this controller wrote it after a failure, and a pass would bypass the rate limit.
func relevantChange() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		was, is := e.ObjectOld.(*v1alpha1.MachineSet), e.ObjectNew.(*v1alpha1.MachineSet)
		resync := was.ResourceVersion == is.ResourceVersion
		return resync || !equality.Semantic.DeepEqual(withoutMessages(was), withoutMessages(is))
	}}
}

// withoutMessages returns a copy of a set without the messages of conditions and without the fields that every
// status write changes.
func withoutMessages(set *v1alpha1.MachineSet) *v1alpha1.MachineSet {
	lean := *set
	lean.ResourceVersion, lean.ManagedFields, lean.Status.LastOperation = "", nil, v1alpha1.LastOperation{}
	lean.Status.Conditions = slices.Clone(set.Status.Conditions)
	for i := range lean.Status.Conditions {
		lean.Status.Conditions[i].Message = ""
	}
	return &lean
}

// requests returns requests for the sets of a namespace for which match returns true.
func (c *Controller) requests(ctx context.Context, namespace string, match func(*v1alpha1.MachineSet) bool) []reconcile.Request {
	sets := &v1alpha1.MachineSetList{}
	if err := c.Client.List(ctx, sets, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil // reads of the cache fail only when the process terminates
	}
	var requests []reconcile.Request
	for i := range sets.Items {
		if match(&sets.Items[i]) {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&sets.Items[i])})
		}
	}
	return requests
}

// setsOf returns the set that controls a Machine or, if the Machine has no controller, the sets that select it.
func (c *Controller) setsOf(ctx context.Context, object client.Object) []reconcile.Request {
	if owner := metav1.GetControllerOfNoCopy(object); owner != nil {
		if owner.Kind != "MachineSet" {
			return nil
		}
		return []reconcile.Request{{NamespacedName: client.ObjectKey{Namespace: object.GetNamespace(), Name: owner.Name}}}
	}
	return c.requests(ctx, object.GetNamespace(), func(set *v1alpha1.MachineSet) bool {
		return scale.Matches(set.Spec.Selector, object.GetLabels())
	})
}

// setsInBackOff returns the sets of a class whose Machines keep failing. The class may have been corrected now.
func (c *Controller) setsInBackOff(ctx context.Context, class client.Object) []reconcile.Request {
	return c.requests(ctx, class.GetNamespace(), func(set *v1alpha1.MachineSet) bool {
		return set.Spec.Template.Spec.Class.Name == class.GetName() && c.lastPass(client.ObjectKeyFromObject(set)).backsOff
	})
}

// overlappingSets returns the sets that overlap with a set that was created, changed or deleted. If there are many,
// it omits sets whose condition cannot change because it names other sets already. Otherwise each new set would
// trigger passes over all of them.
func (c *Controller) overlappingSets(ctx context.Context, object client.Object) []reconcile.Request {
	others, err := c.overlapping(ctx, object.(*v1alpha1.MachineSet))
	if err != nil {
		return nil // reads of the cache fail only when the process terminates
	}
	var requests []reconcile.Request
	for _, other := range others {
		key := client.ObjectKeyFromObject(other)
		named := c.lastPass(key).overlaps
		unaffected := len(named) > maxNamed && !slices.Contains(named[:maxNamed], object.GetName())
		if len(others) <= maxNamed+1 || !unaffected {
			requests = append(requests, reconcile.Request{NamespacedName: key})
		}
	}
	return requests
}

// selectionChange selects changes that may affect which sets overlap, including a change of the controller.
func selectionChange() predicate.Predicate {
	return predicate.Funcs{
		GenericFunc: func(event.GenericEvent) bool { return false },
		UpdateFunc: func(e event.UpdateEvent) bool {
			return e.ObjectOld.GetGeneration() != e.ObjectNew.GetGeneration() ||
				scale.ControllerOf(e.ObjectOld) != scale.ControllerOf(e.ObjectNew)
		},
	}
}
