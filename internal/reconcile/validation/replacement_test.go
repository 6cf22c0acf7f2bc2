package validation_test

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/reconcile/validation"
)

// budgeted returns a policy with one budget.
func budgeted(max, per string, within time.Duration) *v1alpha1.ReplacementPolicy {
	budget := v1alpha1.ReplacementBudget{Max: intstr.Parse(max), Per: per}
	if within != 0 {
		budget.Within = &metav1.Duration{Duration: within}
	}
	return &v1alpha1.ReplacementPolicy{Budgets: []v1alpha1.ReplacementBudget{budget}}
}

func TestReplacement(t *testing.T) {
	const (
		of        = "spec.replacement."
		limit     = invalid + of + "budgets[0].max"
		annotated = invalid + "metadata.annotations[" + v1alpha1.AnnotationKeyReplacement + "]"
	)
	outage := func(is v1alpha1.ZoneOutagePolicy) *v1alpha1.ReplacementPolicy {
		return &v1alpha1.ReplacementPolicy{ZoneOutage: is}
	}
	for name, tc := range map[string]struct {
		reason     string
		field      *v1alpha1.ReplacementPolicy
		annotation string
		fallback   []string
		want       []string
	}{
		"none":                         {},
		"empty":                        {field: &v1alpha1.ReplacementPolicy{}},
		"a number":                     {field: budgeted("3", "", 0)},
		"a percentage":                 {field: budgeted("10%", "topology.kubernetes.io/zone", time.Hour)},
		"none is replaced":             {field: budgeted("0%", "", 0)},
		"below zero":                   {field: budgeted("-1", "", 0), want: []string{limit}},
		"1000 %":                       {field: budgeted("1000%", "", 0), want: []string{limit}},
		"nonsense":                     {field: budgeted("some", "", 0), want: []string{limit}},
		"per invalid label":            {field: budgeted("1", "a zone", 0), want: []string{invalid + of + "budgets[0].per"}},
		"within no time":               {field: budgeted("1", "", -time.Second), want: []string{invalid + of + "budgets[0].within"}},
		"within two days":              {field: budgeted("1", "", 48*time.Hour), want: []string{invalid + of + "budgets[0].within"}},
		"too many budgets":             {field: &v1alpha1.ReplacementPolicy{Budgets: make([]v1alpha1.ReplacementBudget, 9)}, want: []string{"FieldValueTooMany " + of + "budgets"}},
		"wait":                         {field: outage(v1alpha1.ZoneOutageWait)},
		"replace":                      {field: outage(v1alpha1.ZoneOutageReplace), fallback: []string{"b"}},
		"replace without a zone label": {field: outage(v1alpha1.ZoneOutageReplace), want: []string{invalid + of + "zoneOutage"}},
		"unknown zone outage policy":   {field: outage("Panic"), want: []string{"FieldValueNotSupported " + of + "zoneOutage"}},
		"annotated":                    {annotation: `{"budgets":[{"max":2,"within":"1h"}]}`},
		"annotated invalid value":      {annotation: "two", want: []string{annotated}},
		"annotated unknown field":      {annotation: `{"budget":[]}`, want: []string{annotated}},
		"annotated out of range": {
			annotation: `{"budgets":[{"max":"1000%"}]}`, want: []string{annotated + ".budgets[0].max"},
		},
		"the field counts": {reason: "the annotation applies only with CRDs that lack the field", field: budgeted("1", "", 0), annotation: "two"},
	} {
		t.Run(name, func(t *testing.T) {
			deployment := &v1alpha1.MachineDeployment{}
			deployment.Spec.Selector, deployment.Spec.Template = selecting(), template()
			deployment.Spec.Replacement, deployment.Spec.FallbackClasses = tc.field, tc.fallback
			if tc.annotation != "" {
				deployment.Annotations = map[string]string{v1alpha1.AnnotationKeyReplacement: tc.annotation}
			}
			expect(t, tc.reason, tc.want, validation.MachineDeployment(deployment))
		})
	}
}
