package machineset

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/machineset/planner"
	"github.com/millwright-dev/millwright/internal/reconcile/fieldindex"
)

// mostNamed is how many overlapping sets a condition names. It does not say how many more there are:
// each of many that are created would change what is said of all others.
const mostNamed = 3

// overlapping returns the sets that overlap with one, in the order of their names. They are the
// cache's.
func (c *Controller) overlapping(ctx context.Context, set *v1alpha1.MachineSet) ([]*v1alpha1.MachineSet, error) {
	if !planner.CanOverlap(set) {
		return nil, nil
	}
	queries := []client.ListOption{client.MatchingFields{fieldindex.MachineSetBySelector: fieldindex.NoLabel}}
	for _, label := range fieldindex.Labels(set.Spec.Template.Labels) {
		queries = append(queries, client.MatchingFields{fieldindex.MachineSetBySelector: label})
	}
	if label := fieldindex.SelectorLabel(set.Spec.Selector); label != fieldindex.NoLabel {
		queries = append(queries, client.MatchingFields{fieldindex.MachineSetByTemplate: label})
	} else {
		queries = []client.ListOption{client.UnsafeDisableDeepCopy} // all, since any may match
	}
	found := map[types.UID]*v1alpha1.MachineSet{}
	for _, query := range queries {
		list := &v1alpha1.MachineSetList{}
		if err := c.Client.List(ctx, list, client.InNamespace(set.Namespace), query, client.UnsafeDisableDeepCopy); err != nil {
			return nil, fmt.Errorf("listing machine sets: %w", err)
		}
		for i := range list.Items {
			if other := &list.Items[i]; planner.Overlap(set, other) {
				found[other.UID] = other
			}
		}
	}
	sets := make([]*v1alpha1.MachineSet, 0, len(found))
	for _, other := range found {
		sets = append(sets, other)
	}
	slices.SortFunc(sets, func(a, b *v1alpha1.MachineSet) int { return cmp.Compare(a.Name, b.Name) })
	return sets, nil
}

// overlapCondition returns a condition if other sets select the same Machines. Each keeps its own,
// but any of them may adopt one that loses its owner.
func overlapCondition(f planner.Facts) *v1alpha1.MachineSetCondition {
	if len(f.Overlaps) == 0 {
		return nil
	}
	names := strings.Join(f.Overlaps[:min(mostNamed, len(f.Overlaps))], ", ")
	if len(f.Overlaps) > mostNamed {
		names += " and others"
	}
	message := fmt.Sprintf("spec.selector: the same machines are selected by %s. Give each set a label of its own.", names)
	return isTrue(v1alpha1.MachineSetSelectorOverlap, string(v1alpha1.MachineSetSelectorOverlap), message, f.Now)
}
