package machineset

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/reconcile/fieldindex"
)

// conditionOverlap is a condition of our own, and the reason of its event: somebody else
// selects the same Machines.
const conditionOverlap v1alpha1.MachineSetConditionType = "SelectorOverlap"

// mostNamed is how many overlapping sets a condition names. It does not say how many more there
// are: each of many that are made would change what is said of all others.
const mostNamed = 3

// andOthers ends a list of names that is not complete.
const andOthers = " and others"

// overlap reports whether the selector of one of two sets matches what the other makes. Sets of
// one deployment have nobody to complain to, and one that is going, or that selects everything,
// makes nothing.
func overlap(a, b *v1alpha1.MachineSet) bool {
	return a.UID != b.UID && works(a) && works(b) && (takes(a, b) || takes(b, a)) && !sameController(a, b)
}

func works(set *v1alpha1.MachineSet) bool {
	return set.DeletionTimestamp.IsZero() && set.Spec.Selector != nil && !selectsAll(set.Spec.Selector)
}

// takes reports whether a set selects what another one makes. Few selectors have expressions, and
// only those are worth parsing.
func takes(a, b *v1alpha1.MachineSet) bool {
	selector, made := a.Spec.Selector, b.Spec.Template.Labels
	return contains(made, selector.MatchLabels) && (len(selector.MatchExpressions) == 0 || selects(selector, made))
}

func selectsAll(selector *metav1.LabelSelector) bool {
	return selector != nil && len(selector.MatchLabels)+len(selector.MatchExpressions) == 0
}

func sameController(a, b *v1alpha1.MachineSet) bool {
	of := controllerOf(a)
	return of != "" && of == controllerOf(b)
}

// overlapping finds the sets that overlap with one, in the order of their names. They are the
// cache's.
func (c *Controller) overlapping(ctx context.Context, set *v1alpha1.MachineSet) ([]*v1alpha1.MachineSet, error) {
	if !works(set) {
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
			if other := &list.Items[i]; overlap(set, other) {
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

// findOverlaps adds to the facts the names of the sets that select the same Machines.
func (c *Controller) findOverlaps(ctx context.Context, f *facts) error {
	sets, err := c.overlapping(ctx, f.set)
	for _, set := range sets {
		f.overlaps = append(f.overlaps, set.Name)
	}
	return err
}

// overlapCondition says so if other sets select the same Machines. Each keeps its own, but which
// of them adopts one that loses its owner is chance.
func overlapCondition(f facts) *v1alpha1.MachineSetCondition {
	if len(f.overlaps) == 0 {
		return nil
	}
	names := strings.Join(f.overlaps[:min(mostNamed, len(f.overlaps))], ", ")
	if len(f.overlaps) > mostNamed {
		names += andOthers
	}
	message := fmt.Sprintf("spec.selector: the same machines are selected by %s. Give each set a label of its own.", names)
	return isTrue(conditionOverlap, string(conditionOverlap), message, f.now)
}

// concerned names the sets that overlap with one that was made, changed or deleted: it is asked
// about the set as it was and as it is. Where many overlap, those are left alone that have said
// so without naming it, or each new one would wake all others.
func (c *Controller) concerned(ctx context.Context, object client.Object) []reconcile.Request {
	changed := object.(*v1alpha1.MachineSet)
	others, err := c.overlapping(ctx, changed)
	if err != nil {
		return nil // the cache ends with the process
	}
	var requests []reconcile.Request
	for _, other := range others {
		if len(others) <= mostNamed+1 || !saysOthers(other, changed.Name) {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(other)})
		}
	}
	return requests
}

// saysOthers reports whether a set has said that it overlaps with more than it names, of which one
// with that name is not one.
func saysOthers(set *v1alpha1.MachineSet, name string) bool {
	at := condition(set.Status.Conditions, conditionOverlap)
	if at < 0 {
		return false
	}
	message := set.Status.Conditions[at].Message
	return strings.Contains(message, andOthers) && !strings.Contains(message, name)
}

// otherSelection lets through what may change who overlaps with whom: also a new controller, of
// which the generation tells nothing.
func otherSelection() predicate.Predicate {
	return predicate.Funcs{
		GenericFunc: func(event.GenericEvent) bool { return false },
		UpdateFunc: func(e event.UpdateEvent) bool {
			return e.ObjectOld.GetGeneration() != e.ObjectNew.GetGeneration() || controllerOf(e.ObjectOld) != controllerOf(e.ObjectNew)
		},
	}
}

// controllerOf is the UID of what controls an object; empty if nothing does.
func controllerOf(object client.Object) types.UID {
	if owner := metav1.GetControllerOfNoCopy(object); owner != nil {
		return owner.UID
	}
	return ""
}
