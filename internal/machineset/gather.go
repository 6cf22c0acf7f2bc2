package machineset

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/index"
)

// gather reads the facts from the cache, and from the API server where the cache cannot
// be relied upon yet.
func (c *Controller) gather(ctx context.Context, set *v1alpha1.MachineSet) (facts, error) {
	f := facts{set: set, now: c.Clock.Now()}
	var err error
	if f.owned, err = c.machines(ctx, set.Namespace, string(set.UID)); err != nil {
		return f, err
	}
	orphans, err := c.machines(ctx, set.Namespace, index.Orphan)
	if err != nil {
		return f, err
	}
	for _, machine := range orphans {
		if selects(set.Spec.Selector, machine.Labels) {
			f.strays = append(f.strays, machine)
		}
	}
	f.certain, err = c.certain(ctx, f)
	return f, err
}

func (c *Controller) machines(ctx context.Context, namespace, controller string) ([]*v1alpha1.Machine, error) {
	list := &v1alpha1.MachineList{}
	err := c.Client.List(ctx, list, client.InNamespace(namespace), client.MatchingFields{index.ByController: controller}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, fmt.Errorf("listing machines: %w", err)
	}
	machines := make([]*v1alpha1.Machine, len(list.Items))
	for i := range list.Items {
		machines[i] = &list.Items[i]
	}
	return machines, nil
}

// certain tells whether the cache shows all that was written. Before a set is first
// counted in this process, and after a write of unknown outcome, the API server is asked.
func (c *Controller) certain(ctx context.Context, f facts) (bool, error) {
	key := client.ObjectKeyFromObject(f.set)
	switch c.expected.judge(key, f.owned, f.now) {
	case complete:
		return true, nil
	case behind:
		return false, nil
	case doubtful:
	}
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
	live, err := c.liveMachines(ctx, f.set, selector)
	if err != nil {
		return false, err
	}
	return c.expected.settle(key, cached, live), nil
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

// liveMachines reads, with a quorum, the Machines that the set controls.
func (c *Controller) liveMachines(ctx context.Context, set *v1alpha1.MachineSet, selector labels.Selector) ([]*metav1.PartialObjectMetadata, error) {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(v1alpha1.SchemeGroupVersion.WithKind("MachineList"))
	if err := c.Live.List(ctx, list, client.InNamespace(set.Namespace), client.MatchingLabelsSelector{Selector: selector}); err != nil {
		return nil, fmt.Errorf("reading the machines of machine set %s: %w", set.Name, err)
	}
	var live []*metav1.PartialObjectMetadata
	for i := range list.Items {
		if metav1.IsControlledBy(&list.Items[i], set) {
			live = append(live, &list.Items[i])
		}
	}
	return live, nil
}
