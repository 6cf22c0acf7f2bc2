package validation

import (
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/budget"
)

// replacement validates the replacement policy, in the field or in the equivalent annotation.
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
	errs := budget.Check(path, policy)
	if policy.ZoneOutage == v1alpha1.ZoneOutageReplace && len(deployment.Spec.FallbackClasses) == 0 && deployment.Annotations[v1alpha1.AnnotationKeyFallbackClasses] == "" {
		errs = append(errs, field.Invalid(path.Child("zoneOutage"), policy.ZoneOutage, "requires spec.fallbackClasses, because machines in other zones need other classes"))
	}
	return errs
}
