package noderef

import (
	"encoding/json"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

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
