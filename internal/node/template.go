package node

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// Adopt changes the node to carry what marks it as its machine's: the finalizer, the
// label with the machine's name, and the annotations, labels and taints of the
// machine's node template.
//
// The template is merged three ways. What it names is added or put right; what it
// named when last applied and names no longer is removed; the rest is left alone.
// What was last applied is kept in an annotation, in the form that MCM writes.
func Adopt(node *corev1.Node, machine *v1alpha1.Machine) error {
	last, err := lastApplied(node)
	if err != nil {
		return err
	}
	template := machine.Spec.NodeTemplateSpec
	node.Annotations = merge(node.Annotations, last.Annotations, template.Annotations)
	node.Labels = merge(node.Labels, last.Labels, template.Labels)
	node.Spec.Taints = mergeTaints(node.Spec.Taints, last.Spec.Taints, template.Spec.Taints)

	if !slices.Contains(node.Finalizers, v1alpha1.FinalizerNode) {
		node.Finalizers = append(node.Finalizers, v1alpha1.FinalizerNode)
	}
	metav1.SetMetaDataLabel(&node.ObjectMeta, v1alpha1.LabelKeyMachineName, machine.Name)
	return setLastApplied(node, &template)
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

func lastApplied(node *corev1.Node) (*v1alpha1.NodeTemplateSpec, error) {
	last := &v1alpha1.NodeTemplateSpec{}
	text, ok := node.Annotations[v1alpha1.AnnotationKeyLastAppliedNodeTemplate]
	if !ok {
		return last, nil
	}
	if err := json.Unmarshal([]byte(text), last); err != nil {
		return nil, fmt.Errorf("annotation %s of node %s: %w", v1alpha1.AnnotationKeyLastAppliedNodeTemplate, node.Name, err)
	}
	return last, nil
}

func setLastApplied(node *corev1.Node, template *v1alpha1.NodeTemplateSpec) error {
	_, recorded := node.Annotations[v1alpha1.AnnotationKeyLastAppliedNodeTemplate]
	if !recorded && len(template.Annotations)+len(template.Labels)+len(template.Spec.Taints) == 0 {
		return nil
	}
	text, err := json.Marshal(template)
	if err != nil {
		return fmt.Errorf("encoding the node template: %w", err)
	}
	metav1.SetMetaDataAnnotation(&node.ObjectMeta, v1alpha1.AnnotationKeyLastAppliedNodeTemplate, string(text))
	return nil
}
