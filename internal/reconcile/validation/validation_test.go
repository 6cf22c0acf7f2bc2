package validation_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/reconcile/validation"
)

// problems formats each error as its type and field. It returns nil for an accepted object.
func problems(errs field.ErrorList) []string {
	var list []string
	for _, err := range errs {
		list = append(list, string(err.Type)+" "+err.Field)
	}
	return list
}

func expect(t *testing.T, reason string, want []string, errs field.ErrorList) {
	t.Helper()
	if diff := cmp.Diff(want, problems(errs)); diff != "" {
		t.Errorf("%s (-want +got):\n%s", reason, diff)
	}
}

const (
	required    = string(field.ErrorTypeRequired) + " "
	invalid     = string(field.ErrorTypeInvalid) + " "
	unsupported = string(field.ErrorTypeNotSupported) + " "
)

var class = v1alpha1.ClassSpec{Kind: "MachineClass", Name: "small"}

func TestMachine(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		class  v1alpha1.ClassSpec
		want   []string
	}{
		"valid":      {"", class, nil},
		"other kind": {"the controller checks whether the kind is known", v1alpha1.ClassSpec{Kind: "AWSMachineClass", Name: "small"}, nil},
		"other API":  {"the group is not checked", v1alpha1.ClassSpec{APIGroup: "example.org", Kind: "MachineClass", Name: "small"}, nil},
		"no kind":    {"", v1alpha1.ClassSpec{Name: "small"}, []string{required + "spec.class.kind"}},
		"no name":    {"", v1alpha1.ClassSpec{Kind: "MachineClass"}, []string{required + "spec.class.name"}},
		"no class":   {"all missing fields are reported together", v1alpha1.ClassSpec{}, []string{required + "spec.class.kind", required + "spec.class.name"}},
	} {
		t.Run(name, func(t *testing.T) {
			machine := &v1alpha1.Machine{}
			machine.Spec.Class = tc.class
			expect(t, tc.reason, tc.want, validation.Machine(machine))
		})
	}
}

func template() v1alpha1.MachineTemplateSpec {
	made := v1alpha1.MachineTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"name": "pool", "zone": "a"}}}
	made.Spec.Class = class
	return made
}

func selecting(requirement ...metav1.LabelSelectorRequirement) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{"name": "pool"}, MatchExpressions: requirement}
}

// TestReplicated checks what MachineSets and MachineDeployments have in common.
func TestReplicated(t *testing.T) {
	type requirement = metav1.LabelSelectorRequirement
	for name, tc := range map[string]struct {
		reason   string
		replicas int32
		selector *metav1.LabelSelector
		change   func(*v1alpha1.MachineTemplateSpec)
		want     []string
	}{
		"valid":             {"", 3, selecting(), nil, nil},
		"no replicas":       {"", 0, selecting(), nil, nil},
		"negative":          {"", -1, selecting(), nil, []string{invalid + "spec.replicas"}},
		"no selector":       {"MCM panics", 3, nil, nil, []string{required + "spec.selector"}},
		"empty selector":    {"it selects everything, which MCM accepts", 3, &metav1.LabelSelector{}, nil, nil},
		"other labels":      {"the set would never find its machines", 3, &metav1.LabelSelector{MatchLabels: map[string]string{"name": "other"}}, nil, []string{invalid + "spec.template.metadata.labels"}},
		"no labels":         {"", 3, selecting(), func(m *v1alpha1.MachineTemplateSpec) { m.Labels = nil }, []string{invalid + "spec.template.metadata.labels"}},
		"expression":        {"", 3, selecting(requirement{Key: "zone", Operator: metav1.LabelSelectorOpExists}), nil, nil},
		"other expression":  {"MCM ignores expressions and creates machines endlessly", 3, selecting(requirement{Key: "zone", Operator: metav1.LabelSelectorOpDoesNotExist}), nil, []string{invalid + "spec.template.metadata.labels"}},
		"broken expression": {"it cannot select anything", 3, selecting(requirement{Key: "zone", Operator: "Near"}), nil, []string{invalid + "spec.selector"}},
		"no class":          {"", 3, selecting(), func(m *v1alpha1.MachineTemplateSpec) { m.Spec.Class = v1alpha1.ClassSpec{} }, []string{required + "spec.template.spec.class.kind", required + "spec.template.spec.class.name"}},
		"all wrong":         {"all errors are reported together", -1, nil, func(m *v1alpha1.MachineTemplateSpec) { m.Spec.Class.Name = "" }, []string{invalid + "spec.replicas", required + "spec.selector", required + "spec.template.spec.class.name"}},
	} {
		t.Run(name, func(t *testing.T) {
			set, deployment := &v1alpha1.MachineSet{}, &v1alpha1.MachineDeployment{}
			set.Spec.Replicas, set.Spec.Selector, set.Spec.Template = tc.replicas, tc.selector, template()
			deployment.Spec.Replicas, deployment.Spec.Selector, deployment.Spec.Template = tc.replicas, tc.selector, template()
			if tc.change != nil {
				tc.change(&set.Spec.Template)
				tc.change(&deployment.Spec.Template)
			}
			expect(t, "MachineSet: "+tc.reason, tc.want, validation.MachineSet(set))
			expect(t, "MachineDeployment: "+tc.reason, tc.want, validation.MachineDeployment(deployment))
		})
	}
}

func text(s string) *intstr.IntOrString { v := intstr.FromString(s); return &v }

func TestStrategy(t *testing.T) {
	number := func(n int32) *intstr.IntOrString { v := intstr.FromInt32(n); return &v }
	rolling := func(unavailable, surge *intstr.IntOrString) v1alpha1.MachineDeploymentStrategy {
		return v1alpha1.MachineDeploymentStrategy{Type: "RollingUpdate", RollingUpdate: &v1alpha1.RollingUpdateMachineDeployment{
			UpdateConfiguration: v1alpha1.UpdateConfiguration{MaxUnavailable: unavailable, MaxSurge: surge},
		}}
	}
	inPlace := func(kind v1alpha1.OrchestrationType, unavailable, surge *intstr.IntOrString) v1alpha1.MachineDeploymentStrategy {
		return v1alpha1.MachineDeploymentStrategy{Type: "InPlaceUpdate", InPlaceUpdate: &v1alpha1.InPlaceUpdateMachineDeployment{
			UpdateConfiguration: v1alpha1.UpdateConfiguration{MaxUnavailable: unavailable, MaxSurge: surge}, OrchestrationType: kind,
		}}
	}
	const (
		rollingSurge       = "spec.strategy.rollingUpdate.maxSurge"
		rollingUnavailable = "spec.strategy.rollingUpdate.maxUnavailable"
	)
	for name, tc := range map[string]struct {
		reason   string
		strategy v1alpha1.MachineDeploymentStrategy
		want     []string
	}{
		"rolling":              {"", rolling(number(1), number(0)), nil},
		"rolling by percent":   {"", rolling(text("20%"), text("150%")), nil},
		"both zero":            {"MCM treats it as one unavailable", rolling(number(0), text("0%")), nil},
		"recreate":             {"", v1alpha1.MachineDeploymentStrategy{Type: "Recreate"}, nil},
		"in place":             {"", inPlace("Auto", number(1), number(0)), nil},
		"in place, manual":     {"", inPlace("Manual", text("10%"), number(0)), nil},
		"part of another type": {"settings of another type are not checked", v1alpha1.MachineDeploymentStrategy{Type: "Recreate", RollingUpdate: rolling(text("x"), nil).RollingUpdate}, nil},
		"default":              {"more lenient than MCM: the default is RollingUpdate", v1alpha1.MachineDeploymentStrategy{}, nil},
		"default bounds":       {"more lenient than MCM: bounds have defaults", rolling(nil, nil), nil},
		"no bounds":            {"more lenient than MCM: bounds have defaults", v1alpha1.MachineDeploymentStrategy{Type: "RollingUpdate"}, nil},
		"other type":           {"", v1alpha1.MachineDeploymentStrategy{Type: "BlueGreen"}, []string{unsupported + "spec.strategy.type"}},
		"lower-case type":      {"types are case-sensitive", v1alpha1.MachineDeploymentStrategy{Type: "recreate"}, []string{unsupported + "spec.strategy.type"}},
		"text without %":       {"", rolling(text("5"), text("many")), []string{invalid + rollingUnavailable, invalid + rollingSurge}},
		"not a percentage":     {"", rolling(number(1), text("x%")), []string{invalid + rollingSurge}},
		"negative":             {"it could never work", rolling(number(-1), text("-5%")), []string{invalid + rollingUnavailable, invalid + rollingSurge}},
		"default, bad bounds":  {"", v1alpha1.MachineDeploymentStrategy{RollingUpdate: rolling(number(1), text("x")).RollingUpdate}, []string{invalid + rollingSurge}},
		"in place, no part":    {"", v1alpha1.MachineDeploymentStrategy{Type: "InPlaceUpdate"}, []string{required + "spec.strategy.inPlaceUpdate"}},
		"in place, no kind":    {"", inPlace("", number(1), number(0)), []string{unsupported + "spec.strategy.inPlaceUpdate.orchestrationType"}},
		"in place, bounds":     {"", inPlace("Auto", text("x"), number(-1)), []string{invalid + "spec.strategy.inPlaceUpdate.maxUnavailable", invalid + "spec.strategy.inPlaceUpdate.maxSurge"}},
	} {
		t.Run(name, func(t *testing.T) {
			deployment := &v1alpha1.MachineDeployment{}
			deployment.Spec.Selector, deployment.Spec.Template, deployment.Spec.Strategy = selecting(), template(), tc.strategy
			expect(t, tc.reason, tc.want, validation.MachineDeployment(deployment))
		})
	}
}

func TestExcess(t *testing.T) {
	number := func(n int32) *intstr.IntOrString { v := intstr.FromInt32(n); return &v }
	const annotated = "metadata.annotations[" + v1alpha1.AnnotationKeyExcessReplicas + "]"
	for name, tc := range map[string]struct {
		reason     string
		field      *intstr.IntOrString
		annotation string
		want       []string
	}{
		"none":               {"", nil, "", nil},
		"a number":           {"", number(2), "", nil},
		"a percentage":       {"", text("100%"), "", nil},
		"by annotation":      {"", nil, "2", nil},
		"below zero":         {"", number(-1), "", []string{invalid + "spec.excessReplicas"}},
		"above 100%":         {"", text("101%"), "", []string{invalid + "spec.excessReplicas"}},
		"no number":          {"", text("two"), "", []string{invalid + "spec.excessReplicas"}},
		"annotated below":    {"", nil, "-1", []string{invalid + annotated}},
		"annotated above":    {"", nil, "150%", []string{invalid + annotated}},
		"annotated words":    {"", nil, "two", []string{invalid + annotated}},
		"annotated overflow": {"the field cannot hold it", nil, "9999999999", []string{invalid + annotated}},
		"the field counts":   {"the annotation applies only with CRDs that lack the field", number(1), "two", nil},
	} {
		t.Run(name, func(t *testing.T) {
			deployment := &v1alpha1.MachineDeployment{}
			deployment.Spec.Selector, deployment.Spec.Template, deployment.Spec.ExcessReplicas = selecting(), template(), tc.field
			if tc.annotation != "" {
				deployment.Annotations = map[string]string{v1alpha1.AnnotationKeyExcessReplicas: tc.annotation}
			}
			expect(t, tc.reason, tc.want, validation.MachineDeployment(deployment))
		})
	}
}

func TestOvershoot_Limits(t *testing.T) {
	below, most := int32(-1), text("2147483647%")
	deployment := &v1alpha1.MachineDeployment{}
	deployment.Spec.Selector, deployment.Spec.Template = selecting(), template()
	deployment.Spec.Strategy.RollingUpdate = &v1alpha1.RollingUpdateMachineDeployment{UpdateConfiguration: v1alpha1.UpdateConfiguration{MaxSurge: most}}
	deployment.Spec.RevisionHistoryLimit, deployment.Spec.ProgressDeadlineSeconds = new(int32), new(int32)
	expect(t, "the smallest and largest values", nil, validation.MachineDeployment(deployment))
	deployment.Spec.MinReadySeconds, deployment.Spec.RevisionHistoryLimit, deployment.Spec.ProgressDeadlineSeconds = below, &below, &below
	deployment.Spec.Strategy.RollingUpdate.MaxSurge = text("2147483648%")
	expect(t, "out of range", []string{
		invalid + "spec.strategy.rollingUpdate.maxSurge", invalid + "spec.minReadySeconds",
		invalid + "spec.revisionHistoryLimit", invalid + "spec.progressDeadlineSeconds",
	}, validation.MachineDeployment(deployment))
}

func TestMachineClass(t *testing.T) {
	some := resource.MustParse("1")
	full := v1alpha1.NodeTemplate{
		Capacity:     corev1.ResourceList{"cpu": some, "gpu": resource.MustParse("0"), "memory": some},
		InstanceType: "m5.large", Region: "eu", Zone: "eu-a",
	}
	for name, tc := range map[string]struct {
		reason string
		change func(*v1alpha1.NodeTemplate)
		want   []string
	}{
		"full":            {"a capacity of zero is valid", func(*v1alpha1.NodeTemplate) {}, nil},
		"more resources":  {"", func(n *v1alpha1.NodeTemplate) { n.Capacity["pods"] = some }, nil},
		"no cpu":          {"", func(n *v1alpha1.NodeTemplate) { delete(n.Capacity, "cpu") }, []string{required + "nodeTemplate.capacity[cpu]"}},
		"no gpu":          {"", func(n *v1alpha1.NodeTemplate) { delete(n.Capacity, "gpu") }, []string{required + "nodeTemplate.capacity[gpu]"}},
		"no memory":       {"", func(n *v1alpha1.NodeTemplate) { delete(n.Capacity, "memory") }, []string{required + "nodeTemplate.capacity[memory]"}},
		"no type":         {"", func(n *v1alpha1.NodeTemplate) { n.InstanceType = "" }, []string{required + "nodeTemplate.instanceType"}},
		"no region":       {"", func(n *v1alpha1.NodeTemplate) { n.Region = "" }, []string{required + "nodeTemplate.region"}},
		"no zone":         {"", func(n *v1alpha1.NodeTemplate) { n.Zone = "" }, []string{required + "nodeTemplate.zone"}},
		"no architecture": {"it is optional", func(n *v1alpha1.NodeTemplate) { n.Architecture = nil }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			class := &v1alpha1.MachineClass{NodeTemplate: full.DeepCopy()}
			tc.change(class.NodeTemplate)
			expect(t, tc.reason, tc.want, validation.MachineClass(class))
		})
	}
	t.Run("no template", func(t *testing.T) {
		expect(t, "a class need not scale from zero", nil, validation.MachineClass(&v1alpha1.MachineClass{}))
	})
}

// TestValidation_AcceptsRecordedObjects checks that objects used by a real MCM are valid.
func TestValidation_AcceptsRecordedObjects(t *testing.T) {
	files, err := filepath.Glob("../../../api/machine/v1alpha1/testdata/mcm/*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("no recorded objects: %v", err)
	}
	seen := map[string]int{}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var list struct{ Items []json.RawMessage }
		if err := json.Unmarshal(data, &list); err != nil {
			t.Fatal(err)
		}
		for _, item := range list.Items {
			kind, errs := validate(t, item)
			seen[kind]++
			expect(t, filepath.Base(file)+": a recorded "+kind, nil, errs)
		}
	}
	for _, kind := range []string{"Machine", "MachineSet", "MachineDeployment", "MachineClass"} {
		if seen[kind] == 0 {
			t.Errorf("no %s was recorded", kind)
		}
	}
}

func validate(t *testing.T, data []byte) (string, field.ErrorList) {
	t.Helper()
	var meta metav1.TypeMeta
	decode(t, data, &meta)
	switch meta.Kind {
	case "Machine":
		return meta.Kind, validation.Machine(decode(t, data, &v1alpha1.Machine{}))
	case "MachineSet":
		return meta.Kind, validation.MachineSet(decode(t, data, &v1alpha1.MachineSet{}))
	case "MachineDeployment":
		return meta.Kind, validation.MachineDeployment(decode(t, data, &v1alpha1.MachineDeployment{}))
	case "MachineClass":
		return meta.Kind, validation.MachineClass(decode(t, data, &v1alpha1.MachineClass{}))
	}
	return meta.Kind, nil
}

func decode[T any](t *testing.T, data []byte, into *T) *T {
	t.Helper()
	if err := json.Unmarshal(data, into); err != nil {
		t.Fatal(err)
	}
	return into
}

// TestMachine_RejectsNegativeTimes checks that each of a Machine's own settings is rejected if it is negative, and accepted
// otherwise.
func TestMachine_RejectsNegativeTimes(t *testing.T) {
	duration := func(d time.Duration) *metav1.Duration { return &metav1.Duration{Duration: d} }
	fields := map[string]func(config *v1alpha1.MachineConfiguration, d time.Duration){
		"spec.drainTimeout":           func(c *v1alpha1.MachineConfiguration, d time.Duration) { c.MachineDrainTimeout = duration(d) },
		"spec.healthTimeout":          func(c *v1alpha1.MachineConfiguration, d time.Duration) { c.MachineHealthTimeout = duration(d) },
		"spec.creationTimeout":        func(c *v1alpha1.MachineConfiguration, d time.Duration) { c.MachineCreationTimeout = duration(d) },
		"spec.inPlaceUpdateTimeout":   func(c *v1alpha1.MachineConfiguration, d time.Duration) { c.MachineInPlaceUpdateTimeout = duration(d) },
		"spec.machinePreserveTimeout": func(c *v1alpha1.MachineConfiguration, d time.Duration) { c.MachinePreserveTimeout = duration(d) },
		"spec.maxEvictRetries":        func(c *v1alpha1.MachineConfiguration, d time.Duration) { c.MaxEvictRetries = ptr.To(int32(d.Hours())) },
	}
	for name, set := range fields {
		for value, refused := range map[time.Duration]bool{-time.Hour: true, 0: false, time.Hour: false, 1_000_000 * time.Hour: false} {
			machine := &v1alpha1.Machine{Spec: v1alpha1.MachineSpec{
				Class:                v1alpha1.ClassSpec{Kind: v1alpha1.MachineClassKind, Name: "c"},
				MachineConfiguration: &v1alpha1.MachineConfiguration{},
			}}
			set(machine.Spec.MachineConfiguration, value)
			errs := validation.Machine(machine)
			if !refused && len(errs) != 0 {
				t.Errorf("%s = %v is rejected: %v", name, value, errs)
			}
			if refused && (len(errs) != 1 || errs[0].Field != name) {
				t.Errorf("%s = %v: %v, want one error for it", name, value, errs)
			}
		}
	}
}
