package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// NodeName returns the name of the Machine's Node, from the label [NodeLabelKey] or the annotation
// [AnnotationKeyNodeName]. It is empty if the name is not known.
func (m *Machine) NodeName() string {
	if name := m.Labels[NodeLabelKey]; name != "" {
		return name
	}
	return m.Annotations[AnnotationKeyNodeName]
}

// SetNodeName stores the name of the Machine's Node in the label [NodeLabelKey]. A name that is not a valid label
// value, since it is too long, is stored in the annotation [AnnotationKeyNodeName] instead. An empty name changes
// nothing.
func (m *Machine) SetNodeName(name string) {
	switch {
	case name == "":
	case len(validation.IsValidLabelValue(name)) == 0:
		metav1.SetMetaDataLabel(&m.ObjectMeta, NodeLabelKey, name)
		delete(m.Annotations, AnnotationKeyNodeName)
	default:
		metav1.SetMetaDataAnnotation(&m.ObjectMeta, AnnotationKeyNodeName, name)
		delete(m.Labels, NodeLabelKey)
	}
}
