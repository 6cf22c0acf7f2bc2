package machineset

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/scale"
	"github.com/millwright-dev/millwright/internal/reconcile/expectations"
	"github.com/millwright-dev/millwright/internal/reconcile/fieldindex"
)

// gather reads the facts, and the version of the set and its class that they describe.
func (c *Controller) gather(ctx context.Context, set *v1alpha1.MachineSet) (scale.Facts, version, error) {
	f := scale.Facts{
		Set: set, Now: c.Clock.Now(), Overshoot: c.Overshoot, EnforceMinReady: c.EnforceMinReadySeconds, Orphaned: c.orphaned.Has(set),
	}
	memory := c.memory.Of(client.ObjectKeyFromObject(set))
	class, name := &v1alpha1.MachineClass{}, set.Spec.Template.Spec.Class.Name
	if err := c.Client.Get(ctx, client.ObjectKey{Namespace: set.Namespace, Name: name}, class); client.IgnoreNotFound(err) != nil {
		return f, version{}, fmt.Errorf("reading machine class %s: %w", name, err)
	}
	current := version{set.UID, class.UID, set.Generation, class.Generation}
	err := c.gatherMachines(ctx, &f)
	if err != nil {
		return f, current, err
	}
	f.Reserve = scale.Members(set, f.Owned, f.Now)
	f.Outdated = memory.upToDate.outdated(set, f.Owned, f.Reserve)
	f.PreservationsCurrent = preservationsCurrent(memory, f.Owned)
	f.NotBefore = memory.failures.until(f.Owned, current)
	if f.Parent, err = c.parent(ctx, c.Client, set); err != nil {
		return f, current, err
	}
	overlapping, err := c.overlapping(ctx, set)
	if err != nil {
		return f, current, err
	}
	for _, other := range overlapping {
		f.Overlaps = append(f.Overlaps, other.Name)
	}
	f.Current, err = c.current(ctx, f)
	return f, current, err
}

// gatherMachines reads the Machines that the set controls, and those that it may adopt.
func (c *Controller) gatherMachines(ctx context.Context, f *scale.Facts) error {
	var err error
	if f.Owned, err = c.Machines.ControlledBy(ctx, f.Set.Namespace, string(f.Set.UID)); err != nil {
		return err
	}
	unowned, err := c.Machines.ControlledBy(ctx, f.Set.Namespace, fieldindex.Orphan)
	selector := scale.Selector(f.Set.Spec.Selector)
	for _, machine := range unowned {
		if selector.Matches(labels.Set(machine.Labels)) {
			f.Unowned = append(f.Unowned, machine)
		}
	}
	return err
}

// parent returns the deployment of a set, or nil if it has none.
func (c *Controller) parent(ctx context.Context, from client.Reader, set *v1alpha1.MachineSet) (*v1alpha1.MachineDeployment, error) {
	owner := metav1.GetControllerOfNoCopy(set)
	if owner == nil || owner.Kind != "MachineDeployment" {
		return nil, nil
	}
	deployment := &v1alpha1.MachineDeployment{}
	err := from.Get(ctx, client.ObjectKey{Namespace: set.Namespace, Name: owner.Name}, deployment)
	if apierrors.IsNotFound(err) || err == nil && deployment.UID != owner.UID {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading machine deployment %s: %w", owner.Name, err)
	}
	return deployment, nil
}

// overlapping returns the sets that overlap with the given one, sorted by name. They are the cache's objects.
func (c *Controller) overlapping(ctx context.Context, set *v1alpha1.MachineSet) ([]*v1alpha1.MachineSet, error) {
	if !scale.CanOverlap(set) {
		return nil, nil
	}
	var queries []client.ListOption
	if label := fieldindex.SelectorLabel(set.Spec.Selector); label == fieldindex.NoLabel {
		queries = []client.ListOption{client.UnsafeDisableDeepCopy} // all sets, since any may match
	} else {
		queries = []client.ListOption{
			client.MatchingFields{fieldindex.MachineSetByTemplate: label}, client.MatchingFields{fieldindex.MachineSetBySelector: fieldindex.NoLabel},
		}
		for _, label := range fieldindex.Labels(set.Spec.Template.Labels) {
			queries = append(queries, client.MatchingFields{fieldindex.MachineSetBySelector: label})
		}
	}
	found := map[types.UID]*v1alpha1.MachineSet{}
	for _, query := range queries {
		list := &v1alpha1.MachineSetList{}
		if err := c.Client.List(ctx, list, client.InNamespace(set.Namespace), query, client.UnsafeDisableDeepCopy); err != nil {
			return nil, fmt.Errorf("listing machine sets: %w", err)
		}
		for i := range list.Items {
			if other := &list.Items[i]; scale.Overlap(set, other) {
				found[other.UID] = other
			}
		}
	}
	return slices.SortedFunc(maps.Values(found), func(a, b *v1alpha1.MachineSet) int { return cmp.Compare(a.Name, b.Name) }), nil
}

// current reports whether the cache contains the effects of all creations and deletions by this process. After a
// write with an unknown outcome, it reads from the API server.
func (c *Controller) current(ctx context.Context, f scale.Facts) (bool, error) {
	machines := &c.memory.Of(client.ObjectKeyFromObject(f.Set)).machines
	if state := machines.Check(f.Owned, f.Now); state != expectations.Unknown {
		return state == expectations.Current, nil
	}
	selector := scale.Selector(f.Set.Spec.Selector)
	if !f.Set.DeletionTimestamp.IsZero() {
		selector = labels.Everything() // Machines that it no longer selects are also deleted
	}
	cached := slices.DeleteFunc(slices.Clone(f.Owned), func(machine *v1alpha1.Machine) bool {
		return !selector.Matches(labels.Set(machine.Labels))
	})
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(v1alpha1.SchemeGroupVersion.WithKind("MachineList"))
	if err := c.Live.List(ctx, list, client.InNamespace(f.Set.Namespace), client.MatchingLabelsSelector{Selector: selector}); err != nil {
		return false, fmt.Errorf("reading the machines of machine set %s: %w", f.Set.Name, err)
	}
	live := slices.DeleteFunc(list.Items, func(machine metav1.PartialObjectMetadata) bool {
		return !metav1.IsControlledBy(&machine, f.Set)
	})
	return machines.Settle(cached, live), nil
}
