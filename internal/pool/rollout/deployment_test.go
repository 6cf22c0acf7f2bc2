package rollout

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

const hashLabel = v1alpha1.DefaultMachineDeploymentUniqueLabelKey

// requires adds a label to the template, and to the labels that the selector requires.
func requires(key, value string) change {
	return func(d *v1alpha1.MachineDeployment) {
		d.Spec.Template.Labels[key], d.Spec.Selector.MatchLabels[key] = value, value
	}
}

// requiresAnyHash makes the selector require the hash label with any value.
func requiresAnyHash(d *v1alpha1.MachineDeployment) {
	d.Spec.Selector.MatchExpressions = []metav1.LabelSelectorRequirement{
		{Key: hashLabel, Operator: metav1.LabelSelectorOpExists},
	}
}

func annotated(key, value string) change {
	return func(d *v1alpha1.MachineDeployment) { metav1.SetMetaDataAnnotation(&d.ObjectMeta, key, value) }
}

// TestOverlap checks that two deployments overlap if the selector of either matches the Machines that the other
// creates.
func TestOverlap(t *testing.T) {
	t.Parallel()
	leaving := func(d *v1alpha1.MachineDeployment) { d.DeletionTimestamp = &metav1.Time{Time: fixture.Noon} }
	selectsAll := func(d *v1alpha1.MachineDeployment) { d.Spec.Selector = &metav1.LabelSelector{} }
	itself := func(d *v1alpha1.MachineDeployment) { fixture.Named("a", d) }
	for name, test := range map[string]struct {
		other change
		want  bool
	}{
		"the same selector":                         {requires("name", fixture.Pool), true},
		"a narrower selector":                       {requires("tier", "gold"), true},
		"different labels":                          {requires("name", "other"), false},
		"the same deployment":                       {itself, false},
		"it is being deleted":                       {leaving, false},
		"it selects all, so it does not create any": {selectsAll, false},
	} {
		a, b := fixture.Named("a", fixture.Deployment(1)), fixture.Named("b", fixture.Deployment(1))
		test.other(b)
		if one, two := Overlap(a, b), Overlap(b, a); one != test.want || two != test.want {
			t.Errorf("%s: %t, and %t if swapped; want %t", name, one, two, test.want)
		}
	}
}

// TestInvalid checks which deployments are not reconciled. A selector may require a hash only if the current set has
// it: otherwise the deployment would create and release sets forever.
func TestInvalid(t *testing.T) {
	t.Parallel()
	requiresHash := requires(hashLabel, "1")
	hashed := func(set *v1alpha1.MachineSet) { set.Labels[hashLabel], set.Spec.Template.Labels[hashLabel] = "1", "1" }
	anyHash := func(d *v1alpha1.MachineDeployment) {
		requiresAnyHash(d)
		d.Spec.Template.Labels[hashLabel] = "1"
	}
	negative := func(d *v1alpha1.MachineDeployment) { d.Spec.Replicas = -1 }
	unknown := annotated(v1alpha1.AnnotationKeyUpdateStrategy, "Now")
	for name, test := range map[string]struct {
		change change
		sets   sets
		want   string
	}{
		"valid":                   {requires("tier", "gold"), nil, ""},
		"negative replicas":       {negative, nil, "spec.replicas"},
		"unknown update strategy": {unknown, nil, "metadata.annotations"},
		"any hash":                {anyHash, nil, ""},
		"a hash that no set has":  {requiresHash, nil, "spec.selector"},
		"the hash of the current": {requiresHash, sets{fixture.Set("a", 1, hashed)}, ""},
		"the current has another": {requiresHash, sets{fixture.Set("a", 1)}, "spec.selector"},
		"the current is deleted":  {requiresHash, sets{fixture.Set("a", 1, hashed, fixture.Leaving)}, "spec.selector"},
		"the hash of an old set":  {requiresHash, sets{fixture.Set("b", 1, hashed)}, "spec.selector"},
		"the current of several":  {requiresHash, sets{fixture.Set("b", 1, hashed), fixture.Set("a", 1, hashed)}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := Invalid(fixture.Deployment(1, test.change), test.sets)
			if !strings.HasPrefix(got, test.want) || (got == "") != (test.want == "") {
				t.Errorf("got %q, want a message about %q", got, test.want)
			}
		})
	}
}

// TestMutated checks that the fields of a set that a webhook changed are reported, each once. Such a set is not the
// current one, so the deployment would create sets forever.
func TestMutated(t *testing.T) {
	t.Parallel()
	type (
		set      = *v1alpha1.MachineSet
		template = *v1alpha1.MachineTemplateSpec
	)
	of := func(mutate func(template)) func(set) { return func(s set) { mutate(&s.Spec.Template) } }
	const metadata, templateSpec = "spec.template.metadata", "spec.template.spec"
	finalizer := []string{"example.com/x"}
	for name, test := range map[string]struct {
		mutate func(set)
		want   string
	}{
		"nothing":            {func(set) {}, ""},
		"a label of the set": {func(s set) { s.Labels["team"] = "blue" }, ""},
		"a selected label":   {func(s set) { delete(s.Labels, "name") }, "metadata.labels"},
		"a node label":       {of(func(t template) { t.Spec.NodeTemplateSpec.Labels = fixture.Labels() }), ""},
		"a label":            {of(func(t template) { t.Labels["team"] = "blue" }), metadata + ".labels"},
		"an annotation":      {of(func(t template) { t.Annotations = fixture.Labels() }), metadata + ".annotations"},
		"the class":          {of(func(t template) { t.Spec.Class.Name = "b" }), templateSpec},
		"other metadata":     {of(func(t template) { t.Finalizers = finalizer }), metadata},
		"the selected hash":  {of(func(t template) { delete(t.Labels, hashLabel) }), metadata},
		"other and class":    {of(func(t template) { t.Finalizers, t.Spec.Class.Name = finalizer, "b" }), templateSpec},
	} {
		t.Run(name, func(t *testing.T) {
			deployment := fixture.Deployment(1, requiresAnyHash)
			created := New(NewFacts(deployment, nil, fixture.Noon)).NewSet(1)
			test.mutate(created)
			if diff := cmp.Diff(test.want, strings.Join(Mutated(deployment, created), " ")); diff != "" {
				t.Errorf("want - got +\n%s", diff)
			}
		})
	}
}
