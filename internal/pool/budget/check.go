package budget

import (
	"fmt"

	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// maxBudgets is how many budgets a policy may have. The CRD of deployments has the same limit.
const maxBudgets = 8

// Check validates a policy. The path is the policy's field path and may be nil.
func Check(path *field.Path, policy *v1alpha1.ReplacementPolicy) field.ErrorList {
	var errs field.ErrorList
	switch policy.ZoneOutage {
	case "", v1alpha1.ZoneOutageWait, v1alpha1.ZoneOutageReplace:
	default:
		errs = append(errs, field.NotSupported(path.Child("zoneOutage"), policy.ZoneOutage,
			[]v1alpha1.ZoneOutagePolicy{v1alpha1.ZoneOutageWait, v1alpha1.ZoneOutageReplace}))
	}
	if len(policy.Budgets) > maxBudgets {
		return append(errs, field.TooMany(path.Child("budgets"), len(policy.Budgets), maxBudgets))
	}
	for i := range policy.Budgets {
		errs = append(errs, checkBudget(path.Child("budgets").Index(i), &policy.Budgets[i])...)
	}
	return errs
}

func checkBudget(path *field.Path, of *v1alpha1.ReplacementBudget) field.ErrorList {
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
	if of.Within != nil && (of.Within.Duration <= 0 || of.Within.Duration > Longest) {
		errs = append(errs, field.Invalid(path.Child("within"), of.Within.Duration.String(), fmt.Sprintf("must be above zero, and at most %v", Longest)))
	}
	return errs
}
