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

// Bounds returns how many Machines an update may have beyond the replicas, and how many of the
// replicas may be unavailable. Both default to 1, and if both are 0, one may be unavailable. If users
// select the nodes that are updated in place, there is no surge. The strategy Recreate has no bounds.
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
	// Both were validated, so neither can fail.
	up, _ := intstr.GetScaledValueFromIntOrPercent(intstr.ValueOrDefault(config.MaxSurge, one), total, true)
	down, _ := intstr.GetScaledValueFromIntOrPercent(intstr.ValueOrDefault(config.MaxUnavailable, one), total, false)
	if up == 0 && down == 0 {
		down = 1
	}
	if inplaceupdate.Manual(deployment) {
		up = 0
	}
	// Their sum with the replicas is a number of replicas, too.
	return int32(min(up, math.MaxInt32-total)), int32(min(down, total))
}

// Selects returns a function that reports whether a deployment's selector matches a set: its own labels
// and those of its Machines.
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

// Overlap reports whether the selector of one of two deployments matches the Machines of the other.
// A deployment that is being deleted, or that selects everything, creates none.
func Overlap(a, b *v1alpha1.MachineDeployment) bool {
	creates := func(d *v1alpha1.MachineDeployment) bool { return d.DeletionTimestamp.IsZero() && !SelectsAll(d) }
	return a.UID != b.UID && creates(a) && creates(b) &&
		(scale.Matches(a.Spec.Selector, b.Spec.Template.Labels) || scale.Matches(b.Spec.Selector, a.Spec.Template.Labels))
}

// Invalid returns why a deployment cannot be reconciled, with the field; empty if it can.
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
	return Unselected(deployment, New(Facts{Deployment: deployment}).NewSet(0)) // which adds the hash
}

// Unselected returns why a deployment does not select a new set; empty if it does. Such a set would be
// released as soon as it exists, and another one created, without end.
func Unselected(deployment *v1alpha1.MachineDeployment, set *v1alpha1.MachineSet) string {
	if Selects(deployment)(set) {
		return ""
	}
	const key = v1alpha1.DefaultMachineDeploymentUniqueLabelKey
	return fmt.Sprintf("spec.selector: %q does not match the machine set that would be made, which has the label %s=%s. Leave that label to the sets.", scale.Selector(deployment.Spec.Selector), key, set.Labels[key])
}

// Mutated names the fields in which a set that was created differs from the deployment's template.
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
