package planner

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/machinedeployment/revision"
	"github.com/millwright-dev/millwright/internal/reconcile/validation"
)

// Invalid says why a deployment cannot be worked on, and names the field; empty if it can.
func Invalid(deployment *v1alpha1.MachineDeployment, sets []*v1alpha1.MachineSet) string {
	if errs := validation.MachineDeployment(deployment); len(errs) > 0 {
		return errs.ToAggregate().Error()
	}
	selector := Selector(deployment)
	if !namesHash(selector) || slices.ContainsFunc(sets, func(set *v1alpha1.MachineSet) bool {
		return set.DeletionTimestamp.IsZero() && Matches(selector, set) && revision.Same(&set.Spec.Template, &deployment.Spec.Template)
	}) {
		return ""
	}
	return Unselected(deployment, NewSet(Facts{Deployment: deployment}, 0))
}

// namesHash reports whether a selector names the hash, which is in no template: a new set adds it.
func namesHash(selector labels.Selector) bool {
	requirements, _ := selector.Requirements()
	return slices.ContainsFunc(requirements, func(r labels.Requirement) bool { return r.Key() == v1alpha1.DefaultMachineDeploymentUniqueLabelKey })
}

// Unselected says that a deployment would not know a new set as its own; empty if it would. Such a
// set would be released as soon as it exists, and another one created, without end.
func Unselected(deployment *v1alpha1.MachineDeployment, set *v1alpha1.MachineSet) string {
	selector := Selector(deployment)
	if Matches(selector, set) {
		return ""
	}
	const key = v1alpha1.DefaultMachineDeploymentUniqueLabelKey
	return fmt.Sprintf("spec.selector: %q does not match the machine set that would be made, which has the label %s=%s. Leave that label to the sets.", selector, key, set.Labels[key])
}

// Mutated names the fields by which a new set, as the API server would create it, is not that of the
// deployment's template. There are none if it is.
func Mutated(deployment *v1alpha1.MachineDeployment, created *v1alpha1.MachineSet) []string {
	want, is, selector := revision.Essence(&deployment.Spec.Template), revision.Essence(&created.Spec.Template), Selector(deployment)
	if equality.Semantic.DeepEqual(want, is) && Matches(selector, created) {
		return nil
	}
	var fields []string
	for _, field := range []struct {
		name string
		same bool
	}{
		{"metadata.labels", selector.Matches(labels.Set(created.Labels))},
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
