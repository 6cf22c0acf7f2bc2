package machineset

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/reconcile/fieldindex"
)

// gather reads the facts from the cache, and from the API server where the cache cannot
// be relied upon yet.
func (c *Controller) gather(ctx context.Context, set *v1alpha1.MachineSet) (facts, error) {
	f := facts{set: set, now: c.Clock.Now(), overshoot: c.Overshoot, enforceMinReady: c.EnforceMinReadySeconds}
	_, f.orphaned = c.orphaned.Load(set.UID)
	var err error
	if f.owned, err = c.Machines.ControlledBy(ctx, set.Namespace, string(set.UID)); err != nil {
		return f, err
	}
	f.inherited = c.inheritedBy(set, len(f.owned))
	orphans, err := c.Machines.ControlledBy(ctx, set.Namespace, fieldindex.Orphan)
	if err != nil {
		return f, err
	}
	selected := f.selected()
	for _, machine := range orphans {
		if selected(machine.Labels) {
			f.strays = append(f.strays, machine)
		}
	}
	if f.parent, err = c.parent(ctx, c.Client, set); err != nil {
		return f, err
	}
	if err = c.findOverlaps(ctx, &f); err != nil {
		return f, err
	}
	class, err := c.class(ctx, set)
	if err != nil {
		return f, err
	}
	f.edition = editionOf(set, class)
	f.notBefore = c.slowed.until(&f)
	f.certain, err = c.certain(ctx, f)
	return f, err
}

// parent is the deployment of a set, nil if it has none.
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

// class is the class of a set, nil if there is none of that name.
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

// certain reports whether the cache shows all that was written. Before a set is first counted
// in this process, the cache has to be as new as the API server was at the first look; and
// after a write of unknown outcome, the API server is asked.
func (c *Controller) certain(ctx context.Context, f facts) (bool, error) {
	key := client.ObjectKeyFromObject(f.set)
	verdict := c.expected.judge(key, f.owned, f.now)
	if verdict == unchecked {
		baseline, err := c.baseline(ctx, f.set.Namespace)
		if err != nil {
			return false, err
		}
		if verdict = baseline.judge(f.set.UID, f.owned); verdict == complete {
			c.expected.trust(key)
			verdict = c.expected.judge(key, f.owned, f.now)
		}
	}
	if verdict != doubtful {
		return verdict == complete, nil
	}
	return c.compare(ctx, f)
}

// compare compares the cache with what the API server has of one set.
func (c *Controller) compare(ctx context.Context, f facts) (bool, error) {
	selector, err := counted(f.set)
	if err != nil {
		return false, err
	}
	var cached []*v1alpha1.Machine
	for _, machine := range f.owned {
		if selector.Matches(labels.Set(machine.Labels)) {
			cached = append(cached, machine)
		}
	}
	list, err := c.liveList(ctx, "Machine", f.set.Namespace, selector)
	if err != nil {
		return false, err
	}
	var live []*metav1.PartialObjectMetadata
	for i := range list.Items {
		if metav1.IsControlledBy(&list.Items[i], f.set) {
			live = append(live, &list.Items[i])
		}
	}
	return c.expected.settle(client.ObjectKeyFromObject(f.set), cached, live), nil
}

// counted selects the Machines that count: a set that is being deleted has to get rid of
// those too that its selector does not match any more.
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

// liveList reads, with a quorum, the objects of a kind that a selector matches.
func (c *Controller) liveList(ctx context.Context, kind, namespace string, selector labels.Selector) (*metav1.PartialObjectMetadataList, error) {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(v1alpha1.SchemeGroupVersion.WithKind(kind + "List"))
	if err := c.Live.List(ctx, list, client.InNamespace(namespace), client.MatchingLabelsSelector{Selector: selector}); err != nil {
		return nil, fmt.Errorf("reading every %s: %w", kind, err)
	}
	return list, nil
}
