package validation_test

import (
	"strings"
	"testing"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/reconcile/validation"
)

func TestFallbackClasses(t *testing.T) {
	const (
		field     = invalid + "spec.fallbackClasses"
		annotated = invalid + "metadata.annotations[" + v1alpha1.AnnotationKeyFallbackClasses + "]"
		skewed    = invalid + "metadata.annotations[" + v1alpha1.AnnotationKeyZoneMaxSkew + "]"
	)
	own := template().Spec.Class.Name
	for name, tc := range map[string]struct {
		reason           string
		field            []string
		annotation, skew string
		want             []string
	}{
		"none":                         {},
		"some":                         {field: []string{"b", "c"}},
		"annotated":                    {annotation: "b, c"},
		"itself":                       {field: []string{"b", own}, want: []string{field}},
		"duplicates":                   {field: []string{"b", "c", "b"}, want: []string{field}},
		"no name":                      {field: []string{"B!"}, want: []string{field}},
		"too many":                     {field: strings.Split(strings.Repeat("b,", 17), ","), want: []string{field}},
		"annotated with its own class": {annotation: own, want: []string{annotated}},
		"an empty annotation":          {annotation: ",", want: []string{annotated}},
		"annotated duplicates":         {annotation: "b,b", want: []string{annotated}},
		"the field counts":             {reason: "the annotation applies only with CRDs that lack the field", field: []string{"b"}, annotation: own},
		"a skew":                       {annotation: "b", skew: "1"},
		"a skew of zero":               {annotation: "b", skew: "0", want: []string{skewed}},
		"skewed":                       {annotation: "b", skew: "much", want: []string{skewed}},
	} {
		t.Run(name, func(t *testing.T) {
			deployment := &v1alpha1.MachineDeployment{}
			deployment.Spec.Selector, deployment.Spec.Template, deployment.Spec.FallbackClasses = selecting(), template(), tc.field
			deployment.Annotations = map[string]string{}
			if tc.annotation != "" {
				deployment.Annotations[v1alpha1.AnnotationKeyFallbackClasses] = tc.annotation
			}
			if tc.skew != "" {
				deployment.Annotations[v1alpha1.AnnotationKeyZoneMaxSkew] = tc.skew
			}
			expect(t, tc.reason, tc.want, validation.MachineDeployment(deployment))
		})
	}
}
