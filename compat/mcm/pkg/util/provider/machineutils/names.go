// Package machineutils contains names of labels and annotations that providers use, at MCM's import path.
package machineutils

import "github.com/millwright-dev/millwright/api/machine/v1alpha1"

const (
	// MachineLabelKey is the label of a node with the name of its machine.
	MachineLabelKey = v1alpha1.LabelKeyMachineName
	// NotManagedByMCM is the annotation of nodes that belong to no machine.
	NotManagedByMCM = v1alpha1.AnnotationKeyNotManaged
)
