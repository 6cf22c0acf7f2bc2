package validation

import (
	"fmt"

	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/replacement/budget"
)

// mostBudgets is how many budgets a deployment may have, also by its CRD.
const mostBudgets = 8

// replacement refuses a policy, in the field or in the annotation that stands for it, that cannot be read or
// followed.
func replacement(deployment *v1alpha1.MachineDeployment) field.ErrorList {
	path, policy := spec.Child("replacement"), deployment.Spec.Replacement
	if text, given := deployment.Annotations[v1alpha1.AnnotationKeyReplacement]; given && policy == nil {
		path = field.NewPath("metadata", "annotations").Key(v1alpha1.AnnotationKeyReplacement)
		read, err := budget.Parse(text)
		if err != nil {
			return field.ErrorList{field.Invalid(path, text, err.Error())}
		}
		policy = read
	}
	if policy == nil {
		return nil
	}
	errs := zoneOutage(path.Child("zoneOutage"), deployment, policy.ZoneOutage)
	if len(policy.Budgets) > mostBudgets {
		errs = append(errs, field.TooMany(path.Child("budgets"), len(policy.Budgets), mostBudgets))
	}
	for i := range policy.Budgets {
		errs = append(errs, replacementBudget(path.Child("budgets").Index(i), &policy.Budgets[i])...)
	}
	return errs
}

// zoneOutage refuses to replace Machines elsewhere when there is no other place.
func zoneOutage(path *field.Path, deployment *v1alpha1.MachineDeployment, of v1alpha1.ZoneOutagePolicy) field.ErrorList {
	switch {
	case of == "", of == v1alpha1.ZoneOutageWait:
		return nil
	case of != v1alpha1.ZoneOutageReplace:
		return field.ErrorList{field.NotSupported(path, of, []v1alpha1.ZoneOutagePolicy{v1alpha1.ZoneOutageWait, v1alpha1.ZoneOutageReplace})}
	case len(deployment.Spec.FallbackClasses) == 0 && deployment.Annotations[v1alpha1.AnnotationKeyFallbackClasses] == "":
		return field.ErrorList{field.Invalid(path, of, "needs spec.fallbackClasses, as machines are made in other zones with other classes")}
	}
	return nil
}

func replacementBudget(path *field.Path, of *v1alpha1.ReplacementBudget) field.ErrorList {
	var errs field.ErrorList
	number, err := intstr.GetScaledValueFromIntOrPercent(&of.Max, 100, false)
	switch limit := path.Child("max"); {
	case err != nil:
		errs = append(errs, field.Invalid(limit, of.Max.String(), "must be a number or a percentage such as 20%"))
	case number < 0:
		errs = append(errs, field.Invalid(limit, of.Max.String(), "must not be below zero"))
	case of.Max.Type == intstr.String && number > 100:
		errs = append(errs, field.Invalid(limit, of.Max.String(), "must not be above 100%"))
	}
	if of.Per != "" {
		errs = append(errs, metav1validation.ValidateLabelName(of.Per, path.Child("per"))...)
	}
	if of.Within != nil && (of.Within.Duration <= 0 || of.Within.Duration > budget.Longest) {
		errs = append(errs, field.Invalid(path.Child("within"), of.Within.Duration.String(), fmt.Sprintf("must be above zero, and at most %v", budget.Longest)))
	}
	return errs
}
