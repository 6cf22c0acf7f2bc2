package rollout

import (
	"fmt"
	"math"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/inplaceupdate"
	"github.com/millwright-dev/millwright/internal/pool/liveupdate"
	"github.com/millwright-dev/millwright/internal/pool/reserve"
	"github.com/millwright-dev/millwright/internal/pool/revision"
	"github.com/millwright-dev/millwright/internal/pool/scale"
	"github.com/millwright-dev/millwright/internal/reconcile/validation"
)

// Bounds returns how many Machines an update may create beyond the replicas, and how many of the replicas may
// be unavailable. Both default to 1. If both are 0, one Machine may be unavailable. If users select the nodes
// to update in place, the surge is 0. For the strategy Recreate, both are 0.
func Bounds(deployment *v1alpha1.MachineDeployment) (surge, unavailable int32) {
	config := v1alpha1.UpdateConfiguration{}
	switch strategy := deployment.Spec.Strategy; strategy.Type {
	case v1alpha1.RecreateMachineDeploymentStrategyType:
		return 0, 0
	case v1alpha1.InPlaceUpdateMachineDeploymentStrategyType:
		if strategy.InPlaceUpdate != nil {
			config = strategy.InPlaceUpdate.UpdateConfiguration
		}
	case v1alpha1.RollingUpdateMachineDeploymentStrategyType, "":
		if strategy.RollingUpdate != nil {
			config = strategy.RollingUpdate.UpdateConfiguration
		}
	}
	one, total := intstr.FromInt32(1), int(reserve.Desired(deployment))
	// Both values were validated, so neither call can fail.
	up, _ := intstr.GetScaledValueFromIntOrPercent(intstr.ValueOrDefault(config.MaxSurge, one), total, true)
	down, _ := intstr.GetScaledValueFromIntOrPercent(intstr.ValueOrDefault(config.MaxUnavailable, one), total, false)
	if up == 0 && down == 0 {
		down = 1
	}
	if inplaceupdate.Manual(deployment) {
		up = 0
	}
	// The sum of surge and replicas must be a valid number of replicas, too.
	return int32(min(up, math.MaxInt32-total)), int32(min(down, total))
}

// Selects returns a function that reports whether a deployment's selector matches a set. It must match both the
// set's labels and the labels of the set's template.
func Selects(deployment *v1alpha1.MachineDeployment) func(*v1alpha1.MachineSet) bool {
	selector := scale.Selector(deployment.Spec.Selector)
	return func(set *v1alpha1.MachineSet) bool {
		return selector.Matches(labels.Set(set.Labels)) && selector.Matches(labels.Set(set.Spec.Template.Labels))
	}
}

// SelectsAll reports whether the deployment's selector is empty, so that it matches everything.
func SelectsAll(deployment *v1alpha1.MachineDeployment) bool {
	return scale.SelectsAll(deployment.Spec.Selector)
}

// Overlap reports whether the selector of one of two deployments matches the Machines of the other. Deployments
// that are being deleted or that select everything create no Machines and do not overlap.
func Overlap(a, b *v1alpha1.MachineDeployment) bool {
	creates := func(d *v1alpha1.MachineDeployment) bool { return d.DeletionTimestamp.IsZero() && !SelectsAll(d) }
	return a.UID != b.UID && creates(a) && creates(b) &&
		(scale.Matches(a.Spec.Selector, b.Spec.Template.Labels) || scale.Matches(b.Spec.Selector, a.Spec.Template.Labels))
}

// Invalid returns why a deployment cannot be reconciled, including the field. It returns an empty string if the
// deployment is valid.
func Invalid(deployment *v1alpha1.MachineDeployment, sets []*v1alpha1.MachineSet) string {
	if errs := validation.MachineDeployment(deployment); len(errs) > 0 {
		return errs.ToAggregate().Error()
	}
	if _, wrong := liveupdate.Parse(deployment.Annotations); wrong != "" {
		return "metadata.annotations: " + wrong
	}
	requirements, _ := scale.Selector(deployment.Spec.Selector).Requirements()
	namesHash := slices.ContainsFunc(requirements, func(r labels.Requirement) bool { return r.Key() == v1alpha1.DefaultMachineDeploymentUniqueLabelKey })
	if !namesHash || slices.ContainsFunc(sets, func(set *v1alpha1.MachineSet) bool {
		return set.DeletionTimestamp.IsZero() && Selects(deployment)(set) && revision.Same(&set.Spec.Template, &deployment.Spec.Template)
	}) {
		return ""
	}
	return Unselected(deployment, New(Facts{Deployment: deployment}).NewSet(0)) // NewSet adds the hash
}

// Unselected returns why a deployment does not select the given new set, or an empty string if it does. Such a
// set would be released as soon as it exists, and the deployment would create sets forever.
func Unselected(deployment *v1alpha1.MachineDeployment, set *v1alpha1.MachineSet) string {
	if Selects(deployment)(set) {
		return ""
	}
	const key = v1alpha1.DefaultMachineDeploymentUniqueLabelKey
	return fmt.Sprintf("spec.selector: %q does not match the machine set to be created, which has the label %s=%s; remove that label from the selector", scale.Selector(deployment.Spec.Selector), key, set.Labels[key])
}

// Mutated returns the fields in which a created set differs from the deployment's template.
func Mutated(deployment *v1alpha1.MachineDeployment, created *v1alpha1.MachineSet) []string {
	want, is := revision.Essence(&deployment.Spec.Template), revision.Essence(&created.Spec.Template)
	var fields []string
	compare := func(field string, same bool) {
		if !same {
			fields = append(fields, field)
		}
	}
	compare("metadata.labels", scale.Matches(deployment.Spec.Selector, created.Labels))
	compare("spec.template.metadata.labels", equality.Semantic.DeepEqual(want.Labels, is.Labels))
	compare("spec.template.metadata.annotations", equality.Semantic.DeepEqual(want.Annotations, is.Annotations))
	compare("spec.template.spec", equality.Semantic.DeepEqual(want.Spec, is.Spec))
	if len(fields) == 0 {
		compare("spec.template.metadata", equality.Semantic.DeepEqual(want, is) && Selects(deployment)(created))
	}
	return fields
}
