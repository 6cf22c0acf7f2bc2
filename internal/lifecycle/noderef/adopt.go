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

// Adopt changes the node to carry what marks it as its machine's: the finalizer, the
// label with the machine's name, and the annotations, labels and taints of the
// machine's node template.
//
// The template is merged three ways. What it names is added or put right; what it
// named when last applied and names no longer is removed; the rest is left alone.
// What was last applied is kept in an annotation, in the form that MCM writes. If that
// cannot be read, nothing counts as applied before, so that nothing is removed, and it
// is written anew. Adopting a node a second time changes nothing.
//
// What no node may have is left out; Invalid says what that is. What was last applied under
// the same key stays then.
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

// Mark changes the node to carry only what marks it as its machine's: the finalizer, and the
// label with the machine's name unless the name is no value for a label.
func Mark(node *corev1.Node, machine *v1alpha1.Machine) {
	if !slices.Contains(node.Finalizers, v1alpha1.FinalizerNode) {
		node.Finalizers = append(node.Finalizers, v1alpha1.FinalizerNode)
	}
	if invalidName(node, machine) == "" {
		metav1.SetMetaDataLabel(&node.ObjectMeta, v1alpha1.LabelKeyMachineName, machine.Name)
	}
}

// Release changes the node to no longer be held by its machine.
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

// mergeTaints keeps the order of the taints that are there and adds new ones at the
// end, so that equal templates never cause a write.
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

// findTaint finds the taint with the same key and effect.
func findTaint(taints []corev1.Taint, like corev1.Taint) *corev1.Taint {
	for i := range taints {
		if taints[i].Key == like.Key && taints[i].Effect == like.Effect {
			return &taints[i]
		}
	}
	return nil
}

// lastApplied is the template that a record says was last applied; empty if there is no
// record, or if somebody spoilt it: a node must not be given up for that.
func lastApplied(record string) *v1alpha1.NodeTemplateSpec {
	last := &v1alpha1.NodeTemplateSpec{}
	if json.Unmarshal([]byte(record), last) != nil {
		return &v1alpha1.NodeTemplateSpec{}
	}
	return last
}

// recordOf is the record of a template. If the old one says the same it stays as it is:
// the same may be written in several ways, and no record means an empty template.
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

// SetCapacity changes the node's status to have the virtual capacity that a class gives to
// its nodes, merged three ways as Adopt does it. What the kubelet reports besides stays.
//
// It goes before RecordCapacity, in a write of its own: what was removed from the class
// must be gone before nothing tells any more that it was once there.
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

// RecordCapacity changes the node to tell what virtual capacity was last applied, in the
// annotation that MCM writes. No capacity leaves no annotation.
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

// lastCapacity is what was last applied; nothing if somebody spoilt the record.
func lastCapacity(node *corev1.Node) corev1.ResourceList {
	var last corev1.ResourceList
	if json.Unmarshal([]byte(node.Annotations[v1alpha1.AnnotationKeyLastAppliedVirtualCapacity]), &last) != nil {
		return nil
	}
	return last
}
