package planner

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// Overlap reports whether the selector of one of two sets matches the Machines that the other
// creates. Sets of one deployment never overlap.
func Overlap(a, b *v1alpha1.MachineSet) bool {
	return a.UID != b.UID && CanOverlap(a) && CanOverlap(b) && (matches(a, b) || matches(b, a)) && !sameController(a, b)
}

// CanOverlap reports whether a set creates Machines. One that is being deleted does not, nor one
// whose selector is missing or matches everything.
func CanOverlap(set *v1alpha1.MachineSet) bool {
	return set.DeletionTimestamp.IsZero() && set.Spec.Selector != nil && !SelectsAll(set.Spec.Selector)
}

// matches reports whether the selector of a matches what b creates. Few selectors have expressions,
// and only those are worth parsing.
func matches(a, b *v1alpha1.MachineSet) bool {
	selector, created := a.Spec.Selector, b.Spec.Template.Labels
	return Contains(created, selector.MatchLabels) && (len(selector.MatchExpressions) == 0 || Selects(selector, created))
}

// SelectsAll reports whether a selector matches everything.
func SelectsAll(selector *metav1.LabelSelector) bool {
	return selector != nil && len(selector.MatchLabels)+len(selector.MatchExpressions) == 0
}

func sameController(a, b *v1alpha1.MachineSet) bool {
	of := ControllerOf(a)
	return of != "" && of == ControllerOf(b)
}

// ControllerOf returns the UID of an object's controller; empty if it has none.
func ControllerOf(object metav1.Object) types.UID {
	if owner := metav1.GetControllerOfNoCopy(object); owner != nil {
		return owner.UID
	}
	return ""
}
