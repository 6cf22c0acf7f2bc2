package planner

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/machinedeployment/revision"
	machineset "github.com/millwright-dev/millwright/internal/controllers/machineset/planner"
	"github.com/millwright-dev/millwright/internal/reconcile/validation"
)

// Selects returns a function that reports whether a deployment's selector matches a set: its own labels
// and those of its Machines.
func Selects(deployment *v1alpha1.MachineDeployment) func(*v1alpha1.MachineSet) bool {
	selector := machineset.Selector(deployment.Spec.Selector)
	return func(set *v1alpha1.MachineSet) bool {
		return selector.Matches(labels.Set(set.Labels)) && selector.Matches(labels.Set(set.Spec.Template.Labels))
	}
}

// SelectsAll reports whether the deployment's selector is empty. It would match everything without a
// controller.
func SelectsAll(deployment *v1alpha1.MachineDeployment) bool {
	return machineset.SelectsAll(deployment.Spec.Selector)
}

// Overlap reports whether the selector of one of two deployments matches the Machines of the other.
// A deployment that is being deleted, or that selects everything, creates none.
func Overlap(a, b *v1alpha1.MachineDeployment) bool {
	creates := func(d *v1alpha1.MachineDeployment) bool { return d.DeletionTimestamp.IsZero() && !SelectsAll(d) }
	return a.UID != b.UID && creates(a) && creates(b) &&
		(machineset.Matches(a.Spec.Selector, b.Spec.Template.Labels) || machineset.Matches(b.Spec.Selector, a.Spec.Template.Labels))
}

// Invalid returns why a deployment cannot be reconciled, with the field; empty if it can.
func Invalid(deployment *v1alpha1.MachineDeployment, sets []*v1alpha1.MachineSet) string {
	if errs := validation.MachineDeployment(deployment); len(errs) > 0 {
		return errs.ToAggregate().Error()
	}
	requirements, _ := machineset.Selector(deployment.Spec.Selector).Requirements()
	namesHash := slices.ContainsFunc(requirements, func(r labels.Requirement) bool { return r.Key() == v1alpha1.DefaultMachineDeploymentUniqueLabelKey })
	if !namesHash || slices.ContainsFunc(sets, func(set *v1alpha1.MachineSet) bool {
		return set.DeletionTimestamp.IsZero() && Selects(deployment)(set) && revision.Same(&set.Spec.Template, &deployment.Spec.Template)
	}) {
		return ""
	}
	return Unselected(deployment, NewSet(Facts{Deployment: deployment}, 0)) // which adds the hash
}

// Unselected returns why a deployment does not select a new set; empty if it does. Such a set would be
// released as soon as it exists, and another one created, without end.
func Unselected(deployment *v1alpha1.MachineDeployment, set *v1alpha1.MachineSet) string {
	if Selects(deployment)(set) {
		return ""
	}
	const key = v1alpha1.DefaultMachineDeploymentUniqueLabelKey
	return fmt.Sprintf("spec.selector: %q does not match the machine set that would be made, which has the label %s=%s. Leave that label to the sets.", machineset.Selector(deployment.Spec.Selector), key, set.Labels[key])
}

// Mutated names the fields in which a set, as the API server created it, differs from the
// deployment's template.
func Mutated(deployment *v1alpha1.MachineDeployment, created *v1alpha1.MachineSet) []string {
	want, is := revision.Essence(&deployment.Spec.Template), revision.Essence(&created.Spec.Template)
	if equality.Semantic.DeepEqual(want, is) && Selects(deployment)(created) {
		return nil
	}
	var fields []string
	for _, field := range []struct {
		name string
		same bool
	}{
		{"metadata.labels", machineset.Matches(deployment.Spec.Selector, created.Labels)},
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
