package noderef

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// Adopt changes the node to have the marks of its machine, and the annotations, labels and taints of
// the machine's node template.
//
// The template is merged three ways, with the one that was last applied, which is in an annotation
// in MCM's form. If that cannot be parsed, nothing is removed. What is Invalid is left out; what was
// last applied under the same key stays. Adopting a node a second time changes nothing.
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

// Mark adds the finalizer, and the label with the machine's name unless that is no valid value.
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

// mergeTaints keeps the order of existing taints, so that equal templates cause no write.
func mergeTaints(current, last, want []corev1.Taint) []corev1.Taint {
	var merged []corev1.Taint
	for _, taint := range current {
		wanted := findTaint(want, taint)
		switch {
		case wanted != nil:
			taint.Value = wanted.Value
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

// recordOf is the record of a template. The old one is kept if it means the same.
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

// SetCapacity merges the virtual capacity of a class into the node's status, three ways as Adopt does.
// It has to be written before RecordCapacity, which forgets what was removed from the class.
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
		if _, wanted := want[name]; !wanted {
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

// RecordCapacity sets MCM's annotation with the virtual capacity that was last applied, if any.
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
