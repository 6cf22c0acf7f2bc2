package noderef

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// Invalid returns one sorted text for each part of a machine's node template, or for its name, that
// the API server would refuse on the node. An admission policy may refuse more.
func Invalid(node *corev1.Node, machine *v1alpha1.Machine) []string {
	_, wrong := fit(node, &v1alpha1.NodeTemplateSpec{}, &machine.Spec.NodeTemplateSpec)
	if name := invalidName(node, machine); name != "" {
		wrong = append(wrong, name)
	}
	return wrong
}

// Lacks returns which of labels, annotations and taints differ from the template, apart from what is
// invalid.
func Lacks(node *corev1.Node, machine *v1alpha1.Machine) []string {
	adopted := &corev1.Node{Spec: corev1.NodeSpec{Taints: node.Spec.Taints}}
	adopted.Labels, adopted.Annotations = maps.Clone(node.Labels), maps.Clone(node.Annotations)
	if Adopt(adopted, machine) != nil {
		return nil
	}
	var lacking []string
	if differ(node.Labels, adopted.Labels, v1alpha1.LabelKeyMachineName) {
		lacking = append(lacking, "labels")
	}
	if differ(node.Annotations, adopted.Annotations, v1alpha1.AnnotationKeyLastAppliedNodeTemplate) {
		lacking = append(lacking, "annotations")
	}
	if !equality.Semantic.DeepEqual(node.Spec.Taints, adopted.Spec.Taints) {
		lacking = append(lacking, "taints")
	}
	return lacking
}

// differ ignores one key, which is no part of a template.
func differ(a, b map[string]string, but string) bool {
	without := func(m map[string]string) map[string]string {
		m = maps.Clone(m)
		delete(m, but)
		return m
	}
	return !maps.Equal(without(a), without(b))
}

// fit replaces what is invalid in a template by what was last applied under the same key.
func fit(node *corev1.Node, last, want *v1alpha1.NodeTemplateSpec) (v1alpha1.NodeTemplateSpec, []string) {
	fitting := *want
	var labels, annotations, taints []string
	fitting.Labels, labels = fitMap(node.Labels, last.Labels, want.Labels, invalidLabel)
	fitting.Annotations, annotations = fitMap(node.Annotations, last.Annotations, want.Annotations, invalidAnnotation)
	fitting.Spec.Taints, taints = fitTaints(node.Spec.Taints, last.Spec.Taints, want.Spec.Taints)
	return fitting, slices.Concat(labels, annotations, taints)
}

// fitMap accepts all that the node already has.
func fitMap(current, last, want map[string]string, invalid func(key, value string) string) (map[string]string, []string) {
	fitting := want
	var wrong []string
	for key, value := range want {
		if has, ok := current[key]; ok && has == value {
			continue
		}
		text := invalid(key, value)
		if text == "" {
			continue
		}
		if len(wrong) == 0 {
			fitting = maps.Clone(want)
		}
		wrong = append(wrong, text)
		delete(fitting, key)
		if was, ok := last[key]; ok && invalid(key, was) == "" {
			fitting[key] = was
		}
	}
	slices.Sort(wrong)
	return fitting, wrong
}

func fitTaints(current, last, want []corev1.Taint) ([]corev1.Taint, []string) {
	var fitting []corev1.Taint
	var wrong []string
	for _, taint := range want {
		text := ""
		if has := findTaint(current, taint); has == nil || has.Value != taint.Value {
			text = invalidTaint(taint)
		}
		if text == "" {
			fitting = append(fitting, taint)
			continue
		}
		wrong = append(wrong, text)
		for _, was := range last {
			if was.Key == taint.Key && findTaint(want, was) == nil && invalidTaint(was) == "" {
				fitting = append(fitting, was)
			}
		}
	}
	if len(wrong) == 0 {
		return want, nil
	}
	return fitting, wrong
}

func invalidLabel(key, value string) string {
	wrong := cmp.Or(first(validation.IsQualifiedName(key)), first(validation.IsValidLabelValue(value)))
	if wrong == "" {
		return ""
	}
	return fmt.Sprintf("label %q with value %q: %s", key, value, wrong)
}

func invalidAnnotation(key, _ string) string {
	wrong := first(validation.IsQualifiedName(strings.ToLower(key))) // as API servers look at it
	if wrong == "" {
		return ""
	}
	return fmt.Sprintf("annotation %q: %s", key, wrong)
}

func invalidTaint(taint corev1.Taint) string {
	wrong := cmp.Or(first(validation.IsQualifiedName(taint.Key)), first(validation.IsValidLabelValue(taint.Value)))
	switch taint.Effect {
	case corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute:
	default:
		wrong = cmp.Or(wrong, "the effect must be NoSchedule, PreferNoSchedule or NoExecute")
	}
	if wrong == "" {
		return ""
	}
	return fmt.Sprintf("taint %q: %s", taint.ToString(), wrong)
}

func invalidName(node *corev1.Node, machine *v1alpha1.Machine) string {
	if node.Labels[v1alpha1.LabelKeyMachineName] == machine.Name {
		return ""
	}
	return invalidLabel(v1alpha1.LabelKeyMachineName, machine.Name)
}

// first returns the first text without its examples.
func first(texts []string) string {
	if len(texts) == 0 {
		return ""
	}
	text, _, _ := strings.Cut(texts[0], " (e.g. ")
	return text
}
