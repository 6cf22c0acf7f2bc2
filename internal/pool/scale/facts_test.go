package scale

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/millwright-dev/millwright/api/machine/legacy"
	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/reserve"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

func TestFacts_Deleted(t *testing.T) {
	t.Parallel()
	pending := func(set *v1alpha1.MachineSet) { set.Finalizers = []string{metav1.FinalizerOrphanDependents} }
	for name, test := range map[string]struct {
		facts Facts
		want  bool
	}{
		"deleted, without machines":    {Facts{Set: newSet(1, fixture.Leaving), Current: true}, true},
		"not deleted":                  {Facts{Set: newSet(1), Current: true}, false},
		"its machines are released":    {Facts{Set: newSet(1, fixture.Leaving, pending), Current: true}, false},
		"machines exist":               {Facts{Set: newSet(1, fixture.Leaving), Owned: machines(1), Current: true}, false},
		"the cache may lack a machine": {Facts{Set: newSet(1, fixture.Leaving)}, false},
	} {
		if got := test.facts.Deleted(); got != test.want {
			t.Errorf("%s: %t, want %t", name, got, test.want)
		}
	}
}

// ready makes a Machine's node ready since a time.
func ready(at time.Time) change {
	return func(m *v1alpha1.Machine) {
		m.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(at)}}
	}
}

func TestAvailableIn_WithoutMinReadyOrPhaseTime(t *testing.T) {
	t.Parallel()
	set := newSet(1, func(set *v1alpha1.MachineSet) { set.Spec.MinReadySeconds = 60 })
	m := machine("a", ready(noon.Add(-10*time.Second)))
	m.Status.CurrentStatus.LastUpdateTime = metav1.Time{}
	if got := AvailableIn(m, Facts{Set: set, Now: noon}); got != 0 {
		t.Errorf("available in %s although minReadySeconds does not apply", got)
	}
	if got := AvailableIn(m, Facts{Set: set, Now: noon, EnforceMinReady: true}); got != 50*time.Second {
		t.Errorf("available in %s, want 50s", got)
	}
}

func TestRequeueAfter_IsSoonestChange(t *testing.T) {
	t.Parallel()
	young, old := ready(noon.Add(-20*time.Second)), ready(noon.Add(-time.Hour))
	pending := phase(v1alpha1.MachinePending)
	for name, test := range map[string]struct {
		machines  []*v1alpha1.Machine
		notBefore time.Duration
		want      time.Duration
	}{
		"nothing":                            {},
		"available already":                  {machines: []*v1alpha1.Machine{machine("a", old)}},
		"available soon":                     {machines: []*v1alpha1.Machine{machine("a", old), machine("b", young), machine("c", old)}, want: 40 * time.Second},
		"not usable":                         {machines: []*v1alpha1.Machine{machine("a", young, pending)}},
		"being deleted":                      {machines: []*v1alpha1.Machine{machine("a", young, deleting)}},
		"preservation expires":               {machines: []*v1alpha1.Machine{machine("a", old, preservedUntil(noon.Add(time.Minute)))}, want: time.Minute},
		"preservation has expired":           {machines: []*v1alpha1.Machine{machine("a", old, preservedUntil(noon))}},
		"back-off":                           {notBefore: time.Second, want: time.Second},
		"back-off has expired":               {notBefore: -time.Second},
		"back-off before it is available":    {machines: []*v1alpha1.Machine{machine("a", young)}, notBefore: time.Second, want: time.Second},
		"available before the back-off":      {machines: []*v1alpha1.Machine{machine("a", young)}, notBefore: time.Hour, want: 40 * time.Second},
		"a preservation that expires before": {machines: []*v1alpha1.Machine{machine("a", young), machine("b", old, preservedUntil(noon.Add(time.Second)))}, want: time.Second},
	} {
		set := newSet(1, func(set *v1alpha1.MachineSet) { set.Spec.MinReadySeconds = 60 })
		f := Facts{Set: set, Owned: test.machines, EnforceMinReady: true, Now: noon}
		if got := RequeueAfter(f, noon.Add(test.notBefore)); got != test.want {
			t.Errorf("%s: %s, want %s", name, got, test.want)
		}
	}
}

// byLabels and byExpression return selectors.
func byLabels(selected map[string]string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: selected}
}

func byExpression(key string, operator metav1.LabelSelectorOperator, values ...string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: key, Operator: operator, Values: values}}}
}

func TestMatches_ParsesExpressions(t *testing.T) {
	t.Parallel()
	both := byExpression("zone", metav1.LabelSelectorOpExists)
	both.MatchLabels = map[string]string{"name": "a"}
	for name, test := range map[string]struct {
		selector *metav1.LabelSelector
		labels   labels.Set
		want     bool
	}{
		"no selector":               {nil, labels.Set{"name": "a"}, false},
		"label":                     {byLabels(labels.Set{"name": "a"}), labels.Set{"name": "a", "zone": "b"}, true},
		"another value":             {byLabels(labels.Set{"name": "a"}), labels.Set{"name": "b"}, false},
		"no label":                  {byLabels(labels.Set{"name": ""}), nil, false},
		"empty value":               {byLabels(labels.Set{"name": ""}), labels.Set{"name": ""}, true},
		"expression":                {byExpression("name", metav1.LabelSelectorOpIn, "a"), labels.Set{"name": "a"}, true},
		"expression does not match": {byExpression("name", metav1.LabelSelectorOpIn, "a"), labels.Set{"name": "b"}, false},
		"invalid expression":        {byExpression("name", "Resembles", "a"), labels.Set{"name": "a"}, false},
		"label and expression":      {both, labels.Set{"name": "a", "zone": "b"}, true},
		"label without expression":  {both, labels.Set{"name": "a"}, false},
		"expression without label":  {both, labels.Set{"zone": "b"}, false},
	} {
		if got := Matches(test.selector, test.labels); got != test.want {
			t.Errorf("%s: %t, want %t", name, got, test.want)
		}
	}
	if Selector(byExpression("name", "Resembles", "a")).Matches(labels.Set{"name": "a"}) {
		t.Error("an invalid selector matches")
	}
}

func TestSelectsAll_RequiresSelector(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		selector *metav1.LabelSelector
		want     bool
	}{
		"no selector":    {nil, false},
		"empty selector": {&metav1.LabelSelector{}, true},
		"label":          {byLabels(fixture.Labels()), false},
		"expression":     {byExpression("name", metav1.LabelSelectorOpExists), false},
	} {
		if got := SelectsAll(test.selector); got != test.want {
			t.Errorf("%s: %t, want %t", name, got, test.want)
		}
	}
}

// Each set is compared with all others of its namespace.
func TestMatches_DoesNotAllocateWithoutExpressions(t *testing.T) {
	selector, created := byLabels(fixture.Labels()), fixture.Labels()
	if cost := testing.AllocsPerRun(10, func() { Matches(selector, created) }); cost > 0 {
		t.Errorf("%.0f allocations", cost)
	}
}

func TestOverlap_IsSymmetric(t *testing.T) {
	t.Parallel()
	named := func(uid types.UID, changes ...func(*v1alpha1.MachineSet)) *v1alpha1.MachineSet {
		return newSet(1, append([]func(*v1alpha1.MachineSet){func(set *v1alpha1.MachineSet) { set.UID = uid }}, changes...)...)
	}
	selecting := func(selector *metav1.LabelSelector, created map[string]string) func(*v1alpha1.MachineSet) {
		return func(set *v1alpha1.MachineSet) { set.Spec.Selector, set.Spec.Template.Labels = selector, created }
	}
	of := func(deployment types.UID) func(*v1alpha1.MachineSet) {
		return func(set *v1alpha1.MachineSet) {
			owner := fixture.Deployment(1)
			owner.UID = deployment
			set.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(owner, v1alpha1.SchemeGroupVersion.WithKind("MachineDeployment"))}
		}
	}
	pool := fixture.Labels()
	other := selecting(byLabels(labels.Set{"name": "other"}), labels.Set{"name": "other"})
	for name, test := range map[string]struct {
		a, b *v1alpha1.MachineSet
		want bool
	}{
		"the same set":                    {named("a"), named("a"), false},
		"the same selector":               {named("a"), named("b"), true},
		"another selector":                {named("a"), named("b", other), false},
		"one selects the other's":         {named("a"), named("b", selecting(byLabels(labels.Set{"zone": "a"}), labels.Set{"name": pool["name"], "zone": "a"})), true},
		"one is being deleted":            {named("a"), named("b", fixture.Leaving), false},
		"one selects everything":          {named("a"), named("b", selecting(&metav1.LabelSelector{}, pool)), false},
		"one has no selector":             {named("a"), named("b", selecting(nil, pool)), false},
		"of the same deployment":          {named("a", of("d")), named("b", of("d")), false},
		"of two deployments":              {named("a", of("d")), named("b", of("e")), true},
		"only one is of a deployment":     {named("a", of("d")), named("b"), true},
		"expressions, everything matches": {named("a"), named("b", selecting(byExpression("name", metav1.LabelSelectorOpExists), labels.Set{"name": "b"})), true},
	} {
		if got, back := Overlap(test.a, test.b), Overlap(test.b, test.a); got != test.want || back != test.want {
			t.Errorf("%s: %t and %t, want %t", name, got, back, test.want)
		}
	}
}

// An autoscaler is about to have a named Machine deleted, so another Machine joins the reserve.
func TestMembers_NamedMachineDoesNotJoinReserve(t *testing.T) {
	t.Parallel()
	set := newSet(2, func(set *v1alpha1.MachineSet) {
		set.Annotations = map[string]string{v1alpha1.AnnotationKeyLastReplicaChange: noon.Format(time.RFC3339), v1alpha1.AnnotationKeyExcessReplicas: "1"}
	})
	named, other := machine("named", marked(noon), age(time.Minute)), machine("other", age(time.Hour))
	named.UID, other.UID = "named", "other"
	want := reserve.Members{"other": true}
	if diff := cmp.Diff(want, Members(set, []*v1alpha1.Machine{named, other}, noon)); diff != "" {
		t.Errorf("want - got +\n%s", diff)
	}
}

func TestTakeOver_CopiesDifferences(t *testing.T) {
	t.Parallel()
	with := func(changes ...func(*v1alpha1.MachineSpec)) *v1alpha1.MachineSpec {
		spec := &v1alpha1.MachineSpec{Class: v1alpha1.ClassSpec{Kind: v1alpha1.MachineClassKind, Name: "a"}}
		for _, change := range changes {
			change(spec)
		}
		return spec
	}
	labelled := func(s *v1alpha1.MachineSpec) { s.NodeTemplateSpec.Labels = map[string]string{"a": "b"} }
	emptyLabels := func(s *v1alpha1.MachineSpec) { s.NodeTemplateSpec.Labels = map[string]string{} }
	configured := func(s *v1alpha1.MachineSpec) {
		s.MachineConfiguration = &v1alpha1.MachineConfiguration{MachineDrainTimeout: &metav1.Duration{Duration: time.Minute}}
	}
	emptyConfiguration := func(s *v1alpha1.MachineSpec) { s.MachineConfiguration = &v1alpha1.MachineConfiguration{} }
	ofKind := func(kind string) func(*v1alpha1.MachineSpec) {
		return func(s *v1alpha1.MachineSpec) { s.Class.Kind = kind }
	}
	named := func(s *v1alpha1.MachineSpec) { s.Class.Name = "b" }
	for name, test := range map[string]struct {
		template, spec *v1alpha1.MachineSpec
		differences    []string
		want           *v1alpha1.MachineSpec
	}{
		"same":                        {with(labelled, configured), with(labelled, configured), nil, with(labelled, configured)},
		"node template":               {with(labelled), with(), []string{"node template"}, with(labelled)},
		"configuration":               {with(configured), with(), []string{"configuration"}, with(configured)},
		"configuration removed":       {with(), with(configured), []string{"configuration"}, with()},
		"everything":                  {with(labelled, configured, ofKind("Other")), with(), []string{"node template", "configuration", "kind of class"}, with(labelled, configured, ofKind("Other"))},
		"empty values remain":         {with(), with(emptyLabels, emptyConfiguration), nil, with(emptyLabels, emptyConfiguration)},
		"another class":               {with(named), with(), nil, with()},
		"migrated class":              {with(), with(ofKind(legacy.AWS)), []string{"kind of class"}, with()},
		"class from before migration": {with(ofKind(legacy.AWS)), with(), nil, with()},
		"legacy kinds":                {with(ofKind(legacy.AWS)), with(ofKind(legacy.GCP)), []string{"kind of class"}, with(ofKind(legacy.AWS))},
		"the same legacy kind":        {with(ofKind(legacy.AWS)), with(ofKind(legacy.AWS)), nil, with(ofKind(legacy.AWS))},
	} {
		if diff := cmp.Diff(test.differences, Differences(test.template, test.spec)); diff != "" {
			t.Errorf("%s: differences, want - got +\n%s", name, diff)
		}
		TakeOver(test.template, test.spec)
		if diff := cmp.Diff(test.want, test.spec); diff != "" {
			t.Errorf("%s: want - got +\n%s", name, diff)
		}
		if left := Differences(test.template, test.spec); len(left) > 0 {
			t.Errorf("%s: still different: %v", name, left)
		}
	}
}
