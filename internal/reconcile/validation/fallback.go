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

// mostFallbackClasses is how many classes a deployment may fall back to, also by its CRD.
const mostFallbackClasses = 16

// fallback refuses a list of classes, in the field or in the annotation that stands for it, of which one
// would be tried twice, and a skew that is no number.
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
		errs = append(errs, field.Invalid(annotations.Key(v1alpha1.AnnotationKeyZoneMaxSkew), text, "must be a number above zero"))
	}
	return errs
}

func fallbackClasses(path *field.Path, listed []string, class v1alpha1.ClassSpec) field.ErrorList {
	refuse := func(name, problem string) field.ErrorList { return field.ErrorList{field.Invalid(path, name, problem)} }
	switch {
	case len(listed) == 0:
		return nil
	case class.Kind != v1alpha1.MachineClassKind:
		return refuse(strings.Join(listed, ","), fmt.Sprintf("only machines of the kind %s can fall back to other classes, and the template's is a %s", v1alpha1.MachineClassKind, class.Kind))
	case len(listed) > mostFallbackClasses:
		return refuse(strings.Join(listed[:2], ",")+",…", fmt.Sprintf("must not have more than %d classes", mostFallbackClasses))
	}
	for i, name := range listed {
		switch {
		case len(utilvalidation.IsDNS1123Subdomain(name)) > 0:
			return refuse(name, "must be the name of a MachineClass")
		case name == class.Name:
			return refuse(name, "is the class of the template, which comes first anyway: leave it out")
		case slices.Contains(listed[:i], name):
			return refuse(name, "is in the list twice: each class is tried once, in order")
		}
	}
	return nil
}
