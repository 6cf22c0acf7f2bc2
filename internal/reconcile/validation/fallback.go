package validation

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// mostFallbackClasses is the maximum number of fallback classes. The CRD has the same limit.
const mostFallbackClasses = 16

// fallback validates the fallback classes, in the field or in the equivalent annotation, and the skew. It
// refuses classes that would be tried twice.
func fallback(deployment *v1alpha1.MachineDeployment) field.ErrorList {
	annotations := field.NewPath("metadata", "annotations")
	path, listed := spec.Child("fallbackClasses"), deployment.Spec.FallbackClasses
	if text, given := deployment.Annotations[v1alpha1.AnnotationKeyFallbackClasses]; given && len(listed) == 0 {
		path = annotations.Key(v1alpha1.AnnotationKeyFallbackClasses)
		for name := range strings.SplitSeq(text, ",") {
			listed = append(listed, strings.TrimSpace(name))
		}
	}
	errs := fallbackClasses(path, listed, deployment.Spec.Template.Spec.Class)
	text, given := deployment.Annotations[v1alpha1.AnnotationKeyZoneMaxSkew]
	if skew, err := strconv.ParseInt(text, 10, 32); given && (err != nil || skew < 1) {
		errs = append(errs, field.Invalid(annotations.Key(v1alpha1.AnnotationKeyZoneMaxSkew), text, "must be a number greater than zero"))
	}
	return errs
}

func fallbackClasses(path *field.Path, listed []string, class v1alpha1.ClassSpec) field.ErrorList {
	refuse := func(name, problem string) field.ErrorList { return field.ErrorList{field.Invalid(path, name, problem)} }
	switch {
	case len(listed) == 0:
		return nil
	case class.Kind != v1alpha1.MachineClassKind:
		return refuse(strings.Join(listed, ","), fmt.Sprintf("only a class of kind %s can have fallback classes, but the class of the template is of kind %s", v1alpha1.MachineClassKind, class.Kind))
	case len(listed) > mostFallbackClasses:
		return refuse(strings.Join(listed[:2], ",")+",…", fmt.Sprintf("must not have more than %d classes", mostFallbackClasses))
	}
	for i, name := range listed {
		switch {
		case len(utilvalidation.IsDNS1123Subdomain(name)) > 0:
			return refuse(name, "must be the name of a MachineClass")
		case name == class.Name:
			return refuse(name, "is the class of the template, which is always tried first; remove it")
		case slices.Contains(listed[:i], name):
			return refuse(name, "is listed twice; each class is tried once, in order")
		}
	}
	return nil
}
