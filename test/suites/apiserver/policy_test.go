package apiserver

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/config"
	"github.com/millwright-dev/millwright/internal/local/controlplane"
	"github.com/millwright-dev/millwright/internal/reconcile/validation"
	"github.com/millwright-dev/millwright/test/support/env"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

// guarded returns an environment in which the policies are in effect.
func guarded(t *testing.T) *env.Env {
	t.Helper()
	e := env.New(t, changed)
	if err := controlplane.Apply(t.Context(), e.Admin, config.Files, "policy/machines.yaml", ""); err != nil {
		t.Fatal(err)
	}
	g := NewWithT(t)
	for _, name := range []string{"machine without a class", "set without a selector", "class without capacity"} { // one for each policy
		bad := refusals[name]
		g.Eventually(func() []string {
			return refused(e.Client.Create(t.Context(), fixture.In(e.Namespace, copied(bad.object)), client.DryRunAll))
		}, env.WaitTimeout, 50*time.Millisecond).Should(Equal(bad.want), "the policies take effect")
	}
	return e
}

// refused lists the fields that a policy names, as "PATH: TYPE".
func refused(err error) []string {
	if err == nil {
		return nil
	}
	_, list, found := strings.Cut(err.Error(), " denied request: ")
	if !found {
		return []string{err.Error()}
	}
	var problems []string
	for problem := range strings.SplitSeq(list, "; ") {
		if parts := strings.SplitN(problem, ": ", 3); len(parts) == 3 {
			problem = parts[0] + ": " + parts[1]
		}
		problems = append(problems, problem)
	}
	slices.Sort(problems)
	return problems
}

func noClass(m *v1alpha1.Machine)       { m.Spec.Class = v1alpha1.ClassSpec{} }
func noSelector(s *v1alpha1.MachineSet) { s.Spec.Selector = nil }

func class(change func(*v1alpha1.NodeTemplate)) *v1alpha1.MachineClass {
	one := resource.MustParse("1")
	return fixture.MachineClass(func(c *v1alpha1.MachineClass) {
		c.NodeTemplate = &v1alpha1.NodeTemplate{InstanceType: "m5.large", Region: "eu", Zone: "eu-a"}
		c.NodeTemplate.Capacity = corev1.ResourceList{"cpu": one, "gpu": one, "memory": one}
		change(c.NodeTemplate)
	})
}

func strategy(text string) func(*v1alpha1.MachineDeployment) {
	return func(d *v1alpha1.MachineDeployment) {
		d.Spec.Strategy = v1alpha1.MachineDeploymentStrategy{}
		if err := json.Unmarshal([]byte(text), &d.Spec.Strategy); err != nil {
			panic(err) // a mistake in a test case
		}
	}
}

// inExcess sets the annotation that replaces spec.excessReplicas. The CRDs reject invalid values of the field.
func inExcess(text string) func(*v1alpha1.MachineDeployment) {
	return func(d *v1alpha1.MachineDeployment) {
		d.Annotations = map[string]string{v1alpha1.AnnotationKeyExcessReplicas: text}
	}
}

// TestPolicy_RejectsExcessAboveMaximum checks that only the policy rejects more excess machines than the autoscaler maximum
// of a MachineDeployment. The controllers enforce the maximum at run time, since it may be lowered later.
func TestPolicy_RejectsExcessAboveMaximum(t *testing.T) {
	e := guarded(t)
	asks := func(name, text string) error {
		return e.Client.Create(t.Context(), fixture.In(e.Namespace, fixture.Named(name, fixture.MachineDeployment(func(d *v1alpha1.MachineDeployment) {
			inExcess(text)(d)
			d.Annotations[v1alpha1.AnnotationKeyAutoscalerMaxSize] = "3"
		}))))
	}
	expect(t, "as many as the maximum", nil, asks("fits", "3"))
	expect(t, "more", []string{excess + ": Invalid value"}, asks("above", "4"))
	for text, wantText := range map[string]string{"-1": "must not be below zero", "101%": "must not be above 100%", "x": "must be a number or a percentage such as 20%"} {
		err := e.Client.Create(t.Context(), fixture.In(e.Namespace, fixture.MachineDeployment(func(d *v1alpha1.MachineDeployment) {
			value := intstr.Parse(text)
			d.Spec.ExcessReplicas = &value
		})))
		if err == nil || !strings.Contains(err.Error(), wantText) {
			t.Errorf("spec.excessReplicas of %s: the API server reports %v, want %q", text, err, wantText)
		}
	}
}

func set(change func(*v1alpha1.MachineSetSpec)) *v1alpha1.MachineSet {
	return fixture.MachineSet(func(s *v1alpha1.MachineSet) { change(&s.Spec) })
}

const (
	rolling = "spec.strategy.rollingUpdate."
	inPlace = "spec.strategy.inPlaceUpdate"
	excess  = "metadata.annotations[" + v1alpha1.AnnotationKeyExcessReplicas + "]"
)

// refusals are objects with one mistake or several, and the expected errors.
var refusals = map[string]struct {
	object client.Object
	want   []string
}{
	"machine without a class": {fixture.Machine(noClass), []string{"spec.class.kind: Required value", "spec.class.name: Required value"}},
	"machine without a kind":  {fixture.Machine(func(m *v1alpha1.Machine) { m.Spec.Class.Kind = "" }), []string{"spec.class.kind: Required value"}},
	"machine without a name":  {fixture.Machine(func(m *v1alpha1.Machine) { m.Spec.Class.Name = "" }), []string{"spec.class.name: Required value"}},

	"set without a selector": {fixture.MachineSet(noSelector), []string{"spec.selector: Required value"}},
	"set without a class": {set(func(s *v1alpha1.MachineSetSpec) { s.Template.Spec.Class = v1alpha1.ClassSpec{} }),
		[]string{"spec.template.spec.class.kind: Required value", "spec.template.spec.class.name: Required value"}},
	"set with other labels":    {set(func(s *v1alpha1.MachineSetSpec) { s.Template.Labels = map[string]string{"name": "other"} }), []string{"spec.template.metadata.labels: Invalid value"}},
	"set with too many labels": {set(func(s *v1alpha1.MachineSetSpec) { s.Selector.MatchLabels["zone"] = "a" }), []string{"spec.template.metadata.labels: Invalid value"}},
	"set without labels":       {set(func(s *v1alpha1.MachineSetSpec) { s.Template.Labels = nil }), []string{"spec.template.metadata.labels: Invalid value"}},

	"deployment without a selector": {fixture.MachineDeployment(func(d *v1alpha1.MachineDeployment) { d.Spec.Selector = nil }), []string{"spec.selector: Required value"}},
	"deployment without a class":    {fixture.MachineDeployment(func(d *v1alpha1.MachineDeployment) { d.Spec.Template.Spec.Class.Name = "" }), []string{"spec.template.spec.class.name: Required value"}},
	"other type":                    {fixture.MachineDeployment(strategy(`{"type":"BlueGreen"}`)), []string{"spec.strategy.type: Unsupported value"}},
	"other type with a bad bound":   {fixture.MachineDeployment(strategy(`{"type":"BlueGreen","rollingUpdate":{"maxSurge":"x"}}`)), []string{"spec.strategy.type: Unsupported value"}},
	"type in small":                 {fixture.MachineDeployment(strategy(`{"type":"recreate"}`)), []string{"spec.strategy.type: Unsupported value"}},
	"text without %":                {fixture.MachineDeployment(strategy(`{"type":"RollingUpdate","rollingUpdate":{"maxSurge":"5","maxUnavailable":"many"}}`)), []string{rolling + "maxSurge: Invalid value", rolling + "maxUnavailable: Invalid value"}},
	"default with a bad bound":      {fixture.MachineDeployment(strategy(`{"rollingUpdate":{"maxSurge":"x%"}}`)), []string{rolling + "maxSurge: Invalid value"}},
	"excess of ten digits":          {fixture.MachineDeployment(inExcess("2147483647")), []string{excess + ": Invalid value"}},
	"excess below zero":             {fixture.MachineDeployment(inExcess("-1")), []string{excess + ": Invalid value"}},
	"excess below zero per cent":    {fixture.MachineDeployment(inExcess("-5%")), []string{excess + ": Invalid value"}},
	"excess above all":              {fixture.MachineDeployment(inExcess("101%")), []string{excess + ": Invalid value"}},
	"excess of no number":           {fixture.MachineDeployment(inExcess("many")), []string{excess + ": Invalid value"}},
	"in place without its part":     {fixture.MachineDeployment(strategy(`{"type":"InPlaceUpdate"}`)), []string{inPlace + ": Required value"}},
	"in place without a kind":       {fixture.MachineDeployment(strategy(`{"type":"InPlaceUpdate","inPlaceUpdate":{}}`)), []string{inPlace + ".orchestrationType: Unsupported value"}},
	"in place with a bad bound":     {fixture.MachineDeployment(strategy(`{"type":"InPlaceUpdate","inPlaceUpdate":{"orchestrationType":"Auto","maxSurge":"%"}}`)), []string{inPlace + ".maxSurge: Invalid value"}},

	"class without capacity": {class(func(n *v1alpha1.NodeTemplate) { clear(n.Capacity) }), []string{
		"nodeTemplate.capacity[cpu]: Required value", "nodeTemplate.capacity[gpu]: Required value", "nodeTemplate.capacity[memory]: Required value"}},
	"class without a gpu": {class(func(n *v1alpha1.NodeTemplate) { delete(n.Capacity, "gpu") }), []string{"nodeTemplate.capacity[gpu]: Required value"}},
	"class without a place": {class(func(n *v1alpha1.NodeTemplate) { n.InstanceType, n.Region, n.Zone = "", "", "" }), []string{
		"nodeTemplate.instanceType: Required value", "nodeTemplate.region: Required value", "nodeTemplate.zone: Required value"}},
}

// good returns an object of the same kind without mistakes.
func good(like client.Object) client.Object {
	switch like.(type) {
	case *v1alpha1.Machine:
		return fixture.Machine()
	case *v1alpha1.MachineSet:
		return fixture.MachineSet()
	case *v1alpha1.MachineDeployment:
		return fixture.MachineDeployment()
	default:
		return class(func(*v1alpha1.NodeTemplate) {})
	}
}

// validate lists the controllers' validation errors for an object, in the format of refused.
func validate(object client.Object) []string {
	var errs field.ErrorList
	switch object := object.(type) {
	case *v1alpha1.Machine:
		errs = validation.Machine(object)
	case *v1alpha1.MachineSet:
		errs = validation.MachineSet(object)
	case *v1alpha1.MachineDeployment:
		errs = validation.MachineDeployment(object)
	case *v1alpha1.MachineClass:
		errs = validation.MachineClass(object)
	}
	var problems []string
	for _, err := range errs {
		problems = append(problems, fmt.Sprintf("%s: %s", err.Field, err.Type))
	}
	slices.Sort(problems)
	return problems
}

// TestInvalidChange_IsRejected checks that new objects with a mistake, and changes that introduce a mistake, are rejected with
// the controllers' message. An object that already has the mistake can be used, corrected and deleted.
func TestInvalidChange_IsRejected(t *testing.T) {
	e := guarded(t)
	number := 0
	for name, tc := range refusals {
		number++
		bad := fixture.In(e.Namespace, fixture.Named(fmt.Sprintf("case-%d", number), tc.object))
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, validate(bad)); diff != "" {
				t.Errorf("the controllers report something else (-policy +controllers):\n%s", diff)
			}
			expect(t, "creating it", tc.want, e.Client.Create(t.Context(), copied(bad)))
			existing(t, e, bad)
			mended := copied(good(bad))
			mended.SetName(bad.GetName())
			mended.SetNamespace(bad.GetNamespace())
			expect(t, "mending it", nil, update(t, e, bad, mended))
			expect(t, "making the mistake again", tc.want, update(t, e, bad, bad))
			leaving(t, e, bad)
		})
	}
}

// existing stores an object with a mistake, using the annotation that exempts it, and edits it without the
// annotation.
func existing(t *testing.T, e *env.Env, bad client.Object) {
	t.Helper()
	exempted := copied(bad)
	annotations := map[string]string{v1alpha1.AnnotationKeySkipValidation: "true"}
	maps.Copy(annotations, bad.GetAnnotations())
	exempted.SetAnnotations(annotations)
	expect(t, "creating it with the annotation", nil, e.Client.Create(t.Context(), exempted))
	expect(t, "removing the annotation", nil, update(t, e, bad, bad))
	labelled := copied(bad)
	labelled.SetLabels(map[string]string{"edited": "yes"})
	labelled.SetFinalizers([]string{v1alpha1.FinalizerMCM})
	expect(t, "editing something else", nil, update(t, e, bad, labelled))
}

// leaving deletes an object, and edits it before it is gone.
func leaving(t *testing.T, e *env.Env, bad client.Object) {
	t.Helper()
	held := copied(good(bad))
	held.SetName(bad.GetName())
	held.SetNamespace(bad.GetNamespace())
	held.SetFinalizers([]string{v1alpha1.FinalizerMCM})
	expect(t, "adding a finalizer", nil, update(t, e, bad, held))
	if err := e.Client.Delete(t.Context(), copied(bad)); err != nil {
		t.Fatal(err)
	}
	held = copied(bad)
	held.SetFinalizers([]string{v1alpha1.FinalizerMCM})
	expect(t, "the mistake in an object that is being deleted", nil, update(t, e, bad, held))
	expect(t, "removing the finalizer", nil, update(t, e, bad, bad))
}

func expect(t *testing.T, what string, want []string, err error) {
	t.Helper()
	if diff := cmp.Diff(want, refused(err)); diff != "" {
		t.Fatalf("%s (-want +got):\n%s\n%v", what, diff, err)
	}
}

// copied returns a copy that can be created.
func copied(object client.Object) client.Object {
	made := object.DeepCopyObject().(client.Object)
	made.SetUID("")
	made.SetGeneration(0)
	return made
}

// update replaces an existing object.
func update(t *testing.T, e *env.Env, existing, with client.Object) error {
	t.Helper()
	now := copied(existing)
	if err := e.Client.Get(t.Context(), client.ObjectKeyFromObject(existing), now); err != nil {
		t.Fatal(err)
	}
	with = copied(with)
	with.SetResourceVersion(now.GetResourceVersion())
	return e.Client.Update(t.Context(), with)
}

// TestPolicy_ChecksFieldsIndependently checks that a mistake in one field does not hide another one, and that a mistake counts
// once its strategy is selected.
func TestPolicy_ChecksFieldsIndependently(t *testing.T) {
	e := guarded(t)
	with := func(text string, annotations map[string]string) client.Object {
		made := fixture.In(e.Namespace, fixture.MachineDeployment(strategy(text)))
		made.Annotations = annotations
		return made
	}
	first := with(`{"type":"Recreate","rollingUpdate":{"maxSurge":"x"}}`, nil)
	expect(t, "a bound of another strategy", nil, e.Client.Create(t.Context(), copied(first)))
	chosen := `{"type":"RollingUpdate","rollingUpdate":{"maxSurge":"x"}}`
	expect(t, "choosing that strategy", []string{rolling + "maxSurge: Invalid value"}, update(t, e, first, with(chosen, nil)))
	exempted := map[string]string{v1alpha1.AnnotationKeySkipValidation: "true"}
	expect(t, "with the annotation", nil, update(t, e, first, with(chosen, exempted)))
	expect(t, "the same without it", nil, update(t, e, first, with(chosen, nil)))
	expect(t, "another value", []string{rolling + "maxSurge: Invalid value"},
		update(t, e, first, with(`{"type":"RollingUpdate","rollingUpdate":{"maxSurge":"y"}}`, nil)))
	expect(t, "another field", []string{rolling + "maxUnavailable: Invalid value"},
		update(t, e, first, with(`{"type":"RollingUpdate","rollingUpdate":{"maxSurge":"x","maxUnavailable":"y"}}`, nil)))
	expect(t, "an annotation with another value", []string{rolling + "maxSurge: Invalid value"},
		update(t, e, first, with(`{"type":"RollingUpdate","rollingUpdate":{"maxSurge":"y"}}`, map[string]string{v1alpha1.AnnotationKeySkipValidation: "yes"})))
}

// TestPolicy_AdmitsValidObjects checks that the documented defaults, which stay absent, and objects that MCM accepts are
// admitted.
func TestPolicy_AdmitsValidObjects(t *testing.T) {
	e := guarded(t)
	below := intstr.FromString("-5%")
	for name, object := range map[string]client.Object{
		"a class without a node template": fixture.MachineClass(),
		"a class for scaling from zero":   class(func(*v1alpha1.NodeTemplate) {}),
		"a class of an old kind":          fixture.Machine(func(m *v1alpha1.Machine) { m.Spec.Class.Kind = "AWSMachineClass" }),
		"a selector of everything":        set(func(s *v1alpha1.MachineSetSpec) { s.Selector = &metav1.LabelSelector{} }),
		"an expression, which MCM ignores": set(func(s *v1alpha1.MachineSetSpec) {
			s.Selector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "zone", Operator: metav1.LabelSelectorOpExists}}
		}),
		"no strategy": fixture.MachineDeployment(strategy(`{}`)),
		"no bounds":   fixture.MachineDeployment(strategy(`{"type":"RollingUpdate"}`)),
		"one bound":   fixture.MachineDeployment(strategy(`{"type":"RollingUpdate","rollingUpdate":{"maxSurge":"20%"}}`)),
		"both zero":   fixture.MachineDeployment(strategy(`{"type":"RollingUpdate","rollingUpdate":{"maxSurge":0,"maxUnavailable":"0%"}}`)),
		"recreate":    fixture.MachineDeployment(strategy(`{"type":"Recreate"}`)),
		"in place":    fixture.MachineDeployment(strategy(`{"type":"InPlaceUpdate","inPlaceUpdate":{"orchestrationType":"Manual","maxUnavailable":1}}`)),
		"below zero":  fixture.MachineDeployment(func(d *v1alpha1.MachineDeployment) { d.Spec.MinReadySeconds = -1 }),
		"percentages, too": fixture.MachineDeployment(func(d *v1alpha1.MachineDeployment) {
			strategy(`{"rollingUpdate":{}}`)(d)
			d.Spec.Strategy.RollingUpdate.MaxSurge = &below
		}),
	} {
		made := copied(fixture.In(e.Namespace, object))
		expect(t, name, nil, e.Client.Create(t.Context(), made, client.DryRunAll))
		if deployment, ok := made.(*v1alpha1.MachineDeployment); ok {
			if diff := cmp.Diff(object.(*v1alpha1.MachineDeployment).Spec.Strategy, deployment.Spec.Strategy); diff != "" {
				t.Errorf("%s was rewritten (-sent +stored):\n%s", name, diff)
			}
		}
	}
}
