package machinedeployment

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/machinedeployment/revision"
	"github.com/millwright-dev/millwright/internal/reconcile/validation"
)

// problem says why a deployment cannot be worked on, and names the field; empty if it can.
func problem(deployment *v1alpha1.MachineDeployment, sets []*v1alpha1.MachineSet) string {
	if errs := validation.MachineDeployment(deployment); len(errs) > 0 {
		return errs.ToAggregate().Error()
	}
	selector := selection(deployment)
	if !namesHash(selector) || slices.ContainsFunc(sets, func(set *v1alpha1.MachineSet) bool {
		return set.DeletionTimestamp.IsZero() && matches(selector, set) && revision.Same(&set.Spec.Template, &deployment.Spec.Template)
	}) {
		return ""
	}
	set, err := newSet(facts{deployment: deployment}, 0)
	if err != nil {
		return "" // creating it says so
	}
	return unselected(deployment, set)
}

// namesHash reports whether a selector asks for more than the labels of the template: a new set
// adds the hash to them.
func namesHash(selector labels.Selector) bool {
	requirements, _ := selector.Requirements()
	return slices.ContainsFunc(requirements, func(r labels.Requirement) bool { return r.Key() == v1alpha1.DefaultMachineDeploymentUniqueLabelKey })
}

// unselected says so if the deployment would not know a set for its own; empty if it would.
// Such a set would be released as soon as it exists, and another one made, without end.
func unselected(deployment *v1alpha1.MachineDeployment, set *v1alpha1.MachineSet) string {
	selector := selection(deployment)
	if matches(selector, set) {
		return ""
	}
	const key = v1alpha1.DefaultMachineDeploymentUniqueLabelKey
	return fmt.Sprintf("spec.selector: %q does not match the machine set that would be made, which has the label %s=%s. Leave that label to the sets.", selector, key, set.Labels[key])
}

// mutated names the fields by which a new set, as the API server makes it, is not that of the
// deployment's template. There are none if it is.
func mutated(deployment *v1alpha1.MachineDeployment, made *v1alpha1.MachineSet) []string {
	want, is, selector := revision.Essence(&deployment.Spec.Template), revision.Essence(&made.Spec.Template), selection(deployment)
	if equality.Semantic.DeepEqual(want, is) && matches(selector, made) {
		return nil
	}
	var fields []string
	for _, field := range []struct {
		name string
		same bool
	}{
		{"metadata.labels", selector.Matches(labels.Set(made.Labels))},
		{"spec.template.metadata.labels", equality.Semantic.DeepEqual(want.Labels, is.Labels)},
		{"spec.template.metadata.annotations", equality.Semantic.DeepEqual(want.Annotations, is.Annotations)},
		{"spec.template.spec", equality.Semantic.DeepEqual(want.Spec, is.Spec)},
	} {
		if !field.same {
			fields = append(fields, field.name)
		}
	}
	if len(fields) == 0 {
		return []string{"spec.template.metadata"}
	}
	return fields
}
