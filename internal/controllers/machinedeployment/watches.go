package machinedeployment

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/inplaceupdate"
	"github.com/millwright-dev/millwright/internal/pool/liveupdate"
	"github.com/millwright-dev/millwright/internal/pool/revision"
	"github.com/millwright-dev/millwright/internal/pool/rollout"
	"github.com/millwright-dev/millwright/internal/reconcile/fieldindex"
)

// requests returns requests for the deployments of a namespace for which match returns true.
func (c *Controller) requests(ctx context.Context, namespace string, match func(*v1alpha1.MachineDeployment) bool) []reconcile.Request {
	list := &v1alpha1.MachineDeploymentList{}
	if err := c.Client.List(ctx, list, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil // reads of the cache fail only when the process terminates
	}
	var requests []reconcile.Request
	for i := range list.Items {
		if match(&list.Items[i]) {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
		}
	}
	return requests
}

// ofSet returns the deployments that an event of a set affects: its controller or, if it has none, the deployments
// that may adopt it and the one that it was created for.
func (c *Controller) ofSet(ctx context.Context, object client.Object) []reconcile.Request {
	if owner := metav1.GetControllerOfNoCopy(object); owner != nil {
		if owner.Kind != "MachineDeployment" {
			return nil
		}
		return []reconcile.Request{{NamespacedName: client.ObjectKey{Namespace: object.GetNamespace(), Name: owner.Name}}}
	}
	set := object.(*v1alpha1.MachineSet)
	return c.requests(ctx, set.Namespace, func(other *v1alpha1.MachineDeployment) bool {
		return rollout.Selects(other)(set) || revision.CreatedFor(other, set)
	})
}

// overlapping returns the deployments that overlap with a deployment that was created, changed or deleted.
func (c *Controller) overlapping(ctx context.Context, changed client.Object) []reconcile.Request {
	return c.requests(ctx, changed.GetNamespace(), func(other *v1alpha1.MachineDeployment) bool {
		return rollout.Overlap(changed.(*v1alpha1.MachineDeployment), other)
	})
}

func (c *Controller) ofMachine(ctx context.Context, machine client.Object) []reconcile.Request {
	owner := metav1.GetControllerOfNoCopy(machine)
	if owner == nil || owner.Kind != "MachineSet" {
		return nil
	}
	set := &v1alpha1.MachineSet{}
	key := client.ObjectKey{Namespace: machine.GetNamespace(), Name: owner.Name}
	if err := c.Client.Get(ctx, key, set, client.UnsafeDisableDeepCopy); err != nil {
		return nil // the set does not exist any longer
	}
	return c.ofSet(ctx, set)
}

// ofNode returns the deployments whose Machines name a node.
func (c *Controller) ofNode(ctx context.Context, node client.Object) (requests []reconcile.Request) {
	machines := &v1alpha1.MachineList{}
	if err := c.Client.List(ctx, machines, client.MatchingFields{fieldindex.MachineByNode: node.GetName()}, client.UnsafeDisableDeepCopy); err != nil {
		return nil // reads of the cache fail only when the process terminates
	}
	for i := range machines.Items {
		requests = append(requests, c.ofMachine(ctx, &machines.Items[i])...)
	}
	return requests
}

// nodeChanges selects changes to the labels of an in-place update. Users may misplace labels and correct them without
// a change of the Machine.
func nodeChanges() predicate.Predicate {
	labelled := func(object client.Object) bool { return inplaceupdate.Labelled(object.(*corev1.Node)) }
	return predicate.Funcs{
		CreateFunc:  func(e event.CreateEvent) bool { return labelled(e.Object) },
		DeleteFunc:  func(e event.DeleteEvent) bool { return labelled(e.Object) },
		GenericFunc: func(event.GenericEvent) bool { return false },
		UpdateFunc: func(e event.UpdateEvent) bool {
			return !inplaceupdate.SameLabels(e.ObjectOld.(*corev1.Node), e.ObjectNew.(*corev1.Node))
		},
	}
}

// machineChanges selects events of Machines that were named for deletion, are updated in place, or change their class.
func machineChanges() predicate.Predicate {
	mark := func(object client.Object) string {
		marks := object.GetAnnotations()
		if marks[v1alpha1.AnnotationKeyMarkedForDeletionTime] == "" {
			return ""
		}
		return marks[v1alpha1.AnnotationKeyMarkedForDeletionTime] + marks[v1alpha1.AnnotationKeyMachinePriority]
	}
	return predicate.Funcs{
		CreateFunc:  func(event.CreateEvent) bool { return false }, // the deployment's own event suffices
		GenericFunc: func(event.GenericEvent) bool { return false },
		DeleteFunc:  func(e event.DeleteEvent) bool { return mark(e.Object) != "" },
		UpdateFunc: func(e event.UpdateEvent) bool {
			was, is := e.ObjectOld.(*v1alpha1.Machine), e.ObjectNew.(*v1alpha1.Machine)
			return updateChange(was, is) || classChange(was, is) || mark(was) != mark(is) || mark(is) != "" &&
				(was.Status.CurrentStatus.Phase != is.Status.CurrentStatus.Phase || was.DeletionTimestamp.IsZero() != is.DeletionTimestamp.IsZero())
		},
	}
}

// updateChange reports whether a change of a Machine affects its in-place update.
func updateChange(was, is *v1alpha1.Machine) bool {
	updating := func(machine *v1alpha1.Machine) bool {
		return inplaceupdate.Updating(machine) || inplaceupdate.Failed(machine, nil)
	}
	return inplaceupdate.State(was) != inplaceupdate.State(is) || inplaceupdate.Moved(was) != inplaceupdate.Moved(is) || updating(was) != updating(is) ||
		was.Status.CurrentStatus.Phase != is.Status.CurrentStatus.Phase && (updating(was) || updating(is))
}

// classChange reports whether a change of a Machine affects the change of its class. Machines that are excluded from
// live updates are replaced instead, so it includes changes of their deletion priority.
func classChange(was, is *v1alpha1.Machine) bool {
	annotated := func(key string) bool {
		before, had := was.Annotations[key]
		after, has := is.Annotations[key]
		return before != after || had != has // the empty update strategy is an exception
	}
	asked := liveupdate.RequestedClass(was) != "" || liveupdate.RequestedClass(is) != ""
	return was.Spec.Class.Name != is.Spec.Class.Name ||
		annotated(v1alpha1.AnnotationKeyUpdateClass) || annotated(v1alpha1.AnnotationKeyUpdateStrategy) || annotated(v1alpha1.AnnotationKeyMachinePriority) ||
		asked && (annotated(v1alpha1.AnnotationKeyUpdatePlan) ||
			was.Status.CurrentStatus.Phase != is.Status.CurrentStatus.Phase || was.DeletionTimestamp.IsZero() != is.DeletionTimestamp.IsZero())
}
