package noderef

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// Adopt marks the node as its machine's, and applies the annotations, labels and taints of the machine's node
// template.
//
// This is a three-way merge with the last applied template, which is stored in an annotation in MCM's format.
// If the annotation is invalid, nothing is removed. Invalid parts of the template are ignored, and the last
// applied values of their keys are kept. Adopting a node again changes nothing.
func Adopt(node *corev1.Node, machine *v1alpha1.Machine) error {
	record := node.Annotations[v1alpha1.AnnotationKeyLastAppliedNodeTemplate]
	last := lastApplied(record)
	template, _ := fit(node, last, &machine.Spec.NodeTemplateSpec)
	node.Annotations = merge(node.Annotations, last.Annotations, template.Annotations)
	node.Labels = merge(node.Labels, last.Labels, template.Labels)
	node.Spec.Taints = mergeTaints(node.Spec.Taints, last.Spec.Taints, template.Spec.Taints)

	Mark(node, machine)

	record, err := recordOf(record, last, &template)
	if err == nil && record != "" {
		metav1.SetMetaDataAnnotation(&node.ObjectMeta, v1alpha1.AnnotationKeyLastAppliedNodeTemplate, record)
	}
	return err
}

// Mark adds the finalizer, and the label with the machine's name if that is a valid label value.
func Mark(node *corev1.Node, machine *v1alpha1.Machine) {
	if !slices.Contains(node.Finalizers, v1alpha1.FinalizerNode) {
		node.Finalizers = append(node.Finalizers, v1alpha1.FinalizerNode)
	}
	if invalidName(node, machine) == "" {
		metav1.SetMetaDataLabel(&node.ObjectMeta, v1alpha1.LabelKeyMachineName, machine.Name)
	}
}

// Release removes the finalizer.
func Release(node *corev1.Node) {
	node.Finalizers = slices.DeleteFunc(node.Finalizers, func(finalizer string) bool {
		return finalizer == v1alpha1.FinalizerNode
	})
}

func merge(current, last, want map[string]string) map[string]string {
	merged := maps.Clone(current)
	maps.DeleteFunc(merged, func(key, _ string) bool {
		_, was := last[key]
		_, is := want[key]
		return was && !is
	})
	if merged == nil && len(want) > 0 {
		merged = map[string]string{}
	}
	maps.Copy(merged, want)
	return merged
}

// mergeTaints keeps the order of existing taints, so that an unchanged template causes no write.
func mergeTaints(current, last, want []corev1.Taint) []corev1.Taint {
	var merged []corev1.Taint
	for _, taint := range current {
		desired := findTaint(want, taint)
		switch {
		case desired != nil:
			taint.Value = desired.Value
		case findTaint(last, taint) != nil:
			continue
		}
		merged = append(merged, taint)
	}
	for _, taint := range want {
		if findTaint(merged, taint) == nil {
			merged = append(merged, taint)
		}
	}
	return merged
}

func findTaint(taints []corev1.Taint, like corev1.Taint) *corev1.Taint {
	for i := range taints {
		if taints[i].Key == like.Key && taints[i].Effect == like.Effect {
			return &taints[i]
		}
	}
	return nil
}

func lastApplied(record string) *v1alpha1.NodeTemplateSpec {
	last := &v1alpha1.NodeTemplateSpec{}
	if json.Unmarshal([]byte(record), last) != nil {
		return &v1alpha1.NodeTemplateSpec{}
	}
	return last
}

// recordOf returns the annotation value for a template. The old value is kept if it is equivalent.
func recordOf(old string, last, template *v1alpha1.NodeTemplateSpec) (string, error) {
	if equality.Semantic.DeepEqual(last, template) {
		return old, nil
	}
	text, err := json.Marshal(template)
	if err != nil {
		return "", fmt.Errorf("encoding the node template: %w", err)
	}
	return string(text), nil
}

// VirtualCapacity returns the resources that a class adds to the capacity of its nodes.
func VirtualCapacity(class *v1alpha1.MachineClass) corev1.ResourceList {
	if class.NodeTemplate == nil {
		return nil
	}
	return class.NodeTemplate.VirtualCapacity
}

// SetCapacity merges the virtual capacity of a class into the node's status, with a three-way merge as in
// Adopt. The status must be written before RecordCapacity is called, which drops the record of removed
// resources.
func SetCapacity(node *corev1.Node, want corev1.ResourceList) {
	last := lastCapacity(node)
	if len(last) == 0 && len(want) == 0 {
		return
	}
	merged := maps.Clone(node.Status.Capacity)
	if merged == nil {
		merged = corev1.ResourceList{}
	}
	for name := range last {
		if _, ok := want[name]; !ok {
			delete(merged, name)
		}
	}
	for name, quantity := range want {
		if known, ok := merged[name]; !ok || known.Cmp(quantity) != 0 {
			merged[name] = quantity
		}
	}
	node.Status.Capacity = merged
}

// RecordCapacity sets MCM's annotation to the applied virtual capacity, or removes it if there is none.
func RecordCapacity(node *corev1.Node, want corev1.ResourceList) error {
	if len(want) == 0 {
		delete(node.Annotations, v1alpha1.AnnotationKeyLastAppliedVirtualCapacity)
		return nil
	}
	if equality.Semantic.DeepEqual(lastCapacity(node), want) {
		return nil
	}
	text, err := json.Marshal(want)
	if err != nil {
		return fmt.Errorf("encoding the virtual capacity: %w", err)
	}
	metav1.SetMetaDataAnnotation(&node.ObjectMeta, v1alpha1.AnnotationKeyLastAppliedVirtualCapacity, string(text))
	return nil
}

func lastCapacity(node *corev1.Node) corev1.ResourceList {
	var last corev1.ResourceList
	if json.Unmarshal([]byte(node.Annotations[v1alpha1.AnnotationKeyLastAppliedVirtualCapacity]), &last) != nil {
		return nil
	}
	return last
}

// Invalid returns one text for each part of a machine's node template, and for its name, that the API server
// would refuse on the node. The texts about the template are sorted by kind and key. An admission policy may
// refuse more.
func Invalid(node *corev1.Node, machine *v1alpha1.Machine) []string {
	_, wrong := fit(node, &v1alpha1.NodeTemplateSpec{}, &machine.Spec.NodeTemplateSpec)
	if name := invalidName(node, machine); name != "" {
		wrong = append(wrong, name)
	}
	return wrong
}

// Lacks returns which of labels, annotations and taints differ from the template. Invalid parts of the template
// are ignored.
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

// differ compares maps without one key that is not part of a template.
func differ(a, b map[string]string, but string) bool {
	without := func(m map[string]string) map[string]string {
		m = maps.Clone(m)
		delete(m, but)
		return m
	}
	return !maps.Equal(without(a), without(b))
}

// fit replaces invalid parts of a template with the last applied values of the same keys.
func fit(node *corev1.Node, last, want *v1alpha1.NodeTemplateSpec) (v1alpha1.NodeTemplateSpec, []string) {
	fitting := *want
	var labels, annotations, taints []string
	fitting.Labels, labels = fitMap(node.Labels, last.Labels, want.Labels, invalidLabel)
	fitting.Annotations, annotations = fitMap(node.Annotations, last.Annotations, want.Annotations, invalidAnnotation)
	fitting.Spec.Taints, taints = fitTaints(node.Spec.Taints, last.Spec.Taints, want.Spec.Taints)
	return fitting, slices.Concat(labels, annotations, taints)
}

// fitMap accepts all entries that the node already has.
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
		if earlier := findTaint(fitting, taint); earlier != nil && earlier.Value != taint.Value {
			wrong = append(wrong, fmt.Sprintf("taint %q: has the same key and effect as %q, and a node can have only one of them", taint.ToString(), earlier.ToString()))
			continue
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
	wrong := first(validation.IsQualifiedName(strings.ToLower(key))) // API servers ignore the case
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

// first returns the first text without the examples in it.
func first(texts []string) string {
	if len(texts) == 0 {
		return ""
	}
	text, _, _ := strings.Cut(texts[0], " (e.g. ")
	return text
}
