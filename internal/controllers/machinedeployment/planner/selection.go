package planner

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// Selector returns the deployment's selector. Without one, or with one that cannot be read, it
// selects nothing.
func Selector(deployment *v1alpha1.MachineDeployment) labels.Selector {
	selector, err := metav1.LabelSelectorAsSelector(deployment.Spec.Selector)
	if err != nil {
		return labels.Nothing()
	}
	return selector
}

// Matches reports whether a selector matches a set: its own labels and those of its Machines.
func Matches(selector labels.Selector, set *v1alpha1.MachineSet) bool {
	return selector.Matches(labels.Set(set.Labels)) && selector.Matches(labels.Set(set.Spec.Template.Labels))
}

// SelectsAll reports whether the deployment's selector is empty. It would match whatever has no
// controller.
func SelectsAll(deployment *v1alpha1.MachineDeployment) bool {
	selector := deployment.Spec.Selector
	return selector != nil && len(selector.MatchLabels)+len(selector.MatchExpressions) == 0
}

// Overlap reports whether the selector of one of two deployments matches the Machines of the other.
// A deployment that is being deleted, or that selects everything, creates none.
func Overlap(a, b *v1alpha1.MachineDeployment) bool {
	creates := func(d *v1alpha1.MachineDeployment) bool { return d.DeletionTimestamp.IsZero() && !SelectsAll(d) }
	return a.UID != b.UID && creates(a) && creates(b) && (selects(a, b) || selects(b, a))
}

// selects reports whether the selector of one deployment matches the Machines of another. Comparing
// the labels first is cheap, and mostly enough.
func selects(a, b *v1alpha1.MachineDeployment) bool {
	template := b.Spec.Template.Labels
	if a.Spec.Selector == nil {
		return false
	}
	for key, value := range a.Spec.Selector.MatchLabels {
		if is, ok := template[key]; !ok || is != value {
			return false
		}
	}
	return Selector(a).Matches(labels.Set(template))
}
