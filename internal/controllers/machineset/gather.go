package machineset

import (
	"context"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/machineset/planner"
	"github.com/millwright-dev/millwright/internal/reconcile/expectations"
	"github.com/millwright-dev/millwright/internal/reconcile/fieldindex"
)

// gather reads the facts from the cache, and from the API server where only that knows. It also
// returns which contents of the set and its class they are about.
func (c *Controller) gather(ctx context.Context, set *v1alpha1.MachineSet) (planner.Facts, contents, error) {
	f := planner.Facts{
		Set: set, Now: c.Clock.Now(), Overshoot: c.Overshoot, EnforceMinReady: c.EnforceMinReadySeconds, Orphaned: c.orphaned.Has(set),
	}
	known := c.memory.Of(client.ObjectKeyFromObject(set))
	class, err := c.class(ctx, set)
	if err != nil {
		return f, contents{}, err
	}
	of := contentsOf(set, class)
	if err = c.gatherMachines(ctx, &f); err != nil {
		return f, of, err
	}
	f.Outdated = known.upToDate.outdated(set, f.Owned, f.Selected())
	f.NotBefore = known.failures.until(f.Owned, of)
	if f.Parent, err = c.parent(ctx, c.Client, set); err != nil {
		return f, of, err
	}
	overlapping, err := c.overlapping(ctx, set)
	if err != nil {
		return f, of, err
	}
	for _, other := range overlapping {
		f.Overlaps = append(f.Overlaps, other.Name)
	}
	f.Current, err = c.current(ctx, f)
	return f, of, err
}

// gatherMachines reads the Machines that the set controls, and those that it may adopt.
func (c *Controller) gatherMachines(ctx context.Context, f *planner.Facts) error {
	var err error
	if f.Owned, err = c.Machines.ControlledBy(ctx, f.Set.Namespace, string(f.Set.UID)); err != nil {
		return err
	}
	unowned, err := c.Machines.ControlledBy(ctx, f.Set.Namespace, fieldindex.Orphan)
	if err != nil {
		return err
	}
	selected := f.Selected()
	for _, machine := range unowned {
		if selected(machine.Labels) {
			f.Unowned = append(f.Unowned, machine)
		}
	}
	return nil
}

// parent returns the deployment of a set, nil if it has none.
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

// class returns the class of a set, nil if it does not exist.
func (c *Controller) class(ctx context.Context, set *v1alpha1.MachineSet) (*v1alpha1.MachineClass, error) {
	class := &v1alpha1.MachineClass{}
	key := client.ObjectKey{Namespace: set.Namespace, Name: set.Spec.Template.Spec.Class.Name}
	if err := c.Client.Get(ctx, key, class); apierrors.IsNotFound(err) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("reading machine class %s: %w", key.Name, err)
	}
	return class, nil
}

// current reports whether the cache shows all Machines that this process created and deleted. If it
// does not know itself, the API server is asked.
func (c *Controller) current(ctx context.Context, f planner.Facts) (bool, error) {
	machines := &c.memory.Of(client.ObjectKeyFromObject(f.Set)).machines
	if state := machines.Check(f.Owned, f.Now); state != expectations.Unknown {
		return state == expectations.Current, nil
	}
	selector, err := counted(f.Set)
	if err != nil {
		return false, err
	}
	var cached []*v1alpha1.Machine
	for _, machine := range f.Owned {
		if selector.Matches(labels.Set(machine.Labels)) {
			cached = append(cached, machine)
		}
	}
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

// counted returns a selector of the Machines that count. A set that is being deleted also deletes
// those that its own selector does not match any more.
func counted(set *v1alpha1.MachineSet) (labels.Selector, error) {
	if !set.DeletionTimestamp.IsZero() {
		return labels.Everything(), nil
	}
	selector, err := metav1.LabelSelectorAsSelector(set.Spec.Selector)
	if err != nil {
		return nil, fmt.Errorf("selector of machine set %s: %w", set.Name, err)
	}
	return selector, nil
}
