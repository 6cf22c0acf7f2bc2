package machinedeployment

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/reconcile/fieldindex"
)

// sets reads the sets with that controller, in the order of their names: what is said of them must
// not change with the order in the cache.
func (c *Controller) sets(ctx context.Context, namespace, controller string) ([]*v1alpha1.MachineSet, error) {
	list := &v1alpha1.MachineSetList{}
	err := c.Client.List(ctx, list, client.InNamespace(namespace), client.MatchingFields{fieldindex.ByController: controller})
	if err != nil {
		return nil, fmt.Errorf("listing machine sets: %w", err)
	}
	sets := make([]*v1alpha1.MachineSet, len(list.Items))
	for i := range list.Items {
		sets[i] = &list.Items[i]
	}
	slices.SortFunc(sets, func(a, b *v1alpha1.MachineSet) int { return cmp.Compare(a.Name, b.Name) })
	return sets, nil
}

// findOrphans adds to the facts the sets that the deployment should adopt, and those that it
// released.
func (c *Controller) findOrphans(ctx context.Context, f *facts) error {
	orphans, err := c.sets(ctx, f.deployment.Namespace, fieldindex.Orphan)
	if err != nil {
		return err
	}
	selector := selection(f.deployment)
	for _, set := range orphans {
		mine := matches(selector, set)
		switch {
		case mine && c.Live != nil && set.DeletionTimestamp.IsZero():
			f.strays = append(f.strays, set)
		case !mine && existing(set) > 0 && madeFor(f.deployment, set):
			f.released = append(f.released, set)
		}
	}
	return nil
}

// look adds to the facts what is to be read beside the sets.
func (c *Controller) look(ctx context.Context, f *facts) error {
	if err := c.findOrphans(ctx, f); err != nil {
		return err
	}
	if err := c.findNamed(ctx, f); err != nil {
		return err
	}
	if err := c.findOverlaps(ctx, f); err != nil {
		return err
	}
	if err := c.findHeld(ctx, f); err != nil {
		return err
	}
	return c.findNodes(ctx, f)
}

// findNamed finds the Machines that an autoscaler named for deletion. What is named and is
// not the deployment's counts as gone.
func (c *Controller) findNamed(ctx context.Context, f *facts) error {
	for _, n := range parseNamed(f.deployment.Annotations[v1alpha1.AnnotationKeyTriggerDeletion]) {
		machine := &v1alpha1.Machine{}
		err := c.Client.Get(ctx, client.ObjectKey{Namespace: f.deployment.Namespace, Name: n.name}, machine)
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("reading machine %s: %w", n.name, err)
		}
		ours := func(set *v1alpha1.MachineSet) bool { return controlledBy(machine, set) }
		if err == nil && slices.ContainsFunc(f.all(), ours) {
			n.machine = machine
		}
		f.named = append(f.named, n)
	}
	return nil
}

// findHeld counts the preserved Machines beyond what their sets ask for.
func (c *Controller) findHeld(ctx context.Context, f *facts) error {
	f.held = map[string]int32{}
	for _, set := range f.all() {
		if existing(set) == asked(set) || !set.DeletionTimestamp.IsZero() {
			continue
		}
		machines, err := c.machines(ctx, set)
		if err != nil {
			return err
		}
		f.held[set.Name] = held(set, machines, f.now)
	}
	return nil
}

// machines are those of a set. They are the cache's.
func (c *Controller) machines(ctx context.Context, set *v1alpha1.MachineSet) ([]*v1alpha1.Machine, error) {
	machines, err := c.Machines.ControlledBy(ctx, set.Namespace, string(set.UID))
	if err != nil {
		return nil, fmt.Errorf("machine set %s: %w", set.Name, err)
	}
	return machines, nil
}

// deploymentsOf names the deployments that an event of a set concerns: the one that
// controls it, or those that might, or that one that did.
func (c *Controller) deploymentsOf(ctx context.Context, set client.Object) []reconcile.Request {
	if owner := metav1.GetControllerOfNoCopy(set); owner != nil {
		if owner.Kind != "MachineDeployment" {
			return nil
		}
		return []reconcile.Request{{NamespacedName: client.ObjectKey{Namespace: set.GetNamespace(), Name: owner.Name}}}
	}
	list := &v1alpha1.MachineDeploymentList{}
	if err := c.Client.List(ctx, list, client.InNamespace(set.GetNamespace()), client.UnsafeDisableDeepCopy); err != nil {
		return nil // the cache ends with the process
	}
	var requests []reconcile.Request
	for i := range list.Items {
		other, set := &list.Items[i], set.(*v1alpha1.MachineSet)
		if matches(selection(other), set) || madeFor(other, set) {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(other)})
		}
	}
	return requests
}

// findOverlaps finds the other deployments that select the same Machines.
func (c *Controller) findOverlaps(ctx context.Context, f *facts) error {
	list := &v1alpha1.MachineDeploymentList{}
	if err := c.Client.List(ctx, list, client.InNamespace(f.deployment.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("listing machine deployments: %w", err)
	}
	for i := range list.Items {
		if overlap(f.deployment, &list.Items[i]) {
			f.overlaps = append(f.overlaps, list.Items[i].Name)
		}
	}
	slices.Sort(f.overlaps)
	return nil
}

// concerned names the deployments that overlap with one that was made, changed or deleted. It is
// asked about that as it was and as it is.
func (c *Controller) concerned(ctx context.Context, changed client.Object) []reconcile.Request {
	list := &v1alpha1.MachineDeploymentList{}
	if err := c.Client.List(ctx, list, client.InNamespace(changed.GetNamespace()), client.UnsafeDisableDeepCopy); err != nil {
		return nil // the cache ends with the process
	}
	var requests []reconcile.Request
	for i := range list.Items {
		other := &list.Items[i]
		if overlap(changed.(*v1alpha1.MachineDeployment), other) {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(other)})
		}
	}
	return requests
}

// deploymentOf names the deployment of a Machine.
func (c *Controller) deploymentOf(ctx context.Context, machine client.Object) []reconcile.Request {
	owner := metav1.GetControllerOfNoCopy(machine)
	if owner == nil || owner.Kind != "MachineSet" {
		return nil
	}
	set := &v1alpha1.MachineSet{}
	key := client.ObjectKey{Namespace: machine.GetNamespace(), Name: owner.Name}
	if err := c.Client.Get(ctx, key, set, client.UnsafeDisableDeepCopy); err != nil {
		return nil // a set that is gone has no deployment
	}
	return c.deploymentsOf(ctx, set)
}

// markedChanges lets through what happens to Machines that were named for deletion.
func markedChanges() predicate.Predicate {
	mark := func(object client.Object) string {
		marks := object.GetAnnotations()
		if marks[v1alpha1.AnnotationKeyMarkedForDeletionTime] == "" {
			return ""
		}
		return marks[v1alpha1.AnnotationKeyMarkedForDeletionTime] + marks[v1alpha1.AnnotationKeyMachinePriority]
	}
	return predicate.Funcs{
		CreateFunc:  func(event.CreateEvent) bool { return false }, // the deployment's own event comes then
		GenericFunc: func(event.GenericEvent) bool { return false },
		DeleteFunc:  func(e event.DeleteEvent) bool { return mark(e.Object) != "" },
		UpdateFunc: func(e event.UpdateEvent) bool {
			was, is := e.ObjectOld.(*v1alpha1.Machine), e.ObjectNew.(*v1alpha1.Machine)
			return mark(was) != mark(is) || mark(is) != "" &&
				(was.Status.CurrentStatus.Phase != is.Status.CurrentStatus.Phase || was.DeletionTimestamp.IsZero() != is.DeletionTimestamp.IsZero())
		},
	}
}
