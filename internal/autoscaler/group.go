// Package autoscaler says what MachineDeployments are to the cluster-autoscaler of Kubernetes: groups of
// nodes with bounds, the instances of a group, what a new node of it is like, and which changes of a
// group are allowed.
//
// It is pure. Package service reads the objects, and writes what was decided.
package autoscaler

import (
	"errors"
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	autoscalerpb "github.com/millwright-dev/millwright/proto/autoscaler"
)

// Annotations with the bounds of a MachineDeployment. They have the names that the autoscaler has for
// Cluster API.
const (
	AnnotationMinSize = "cluster.x-k8s.io/cluster-api-autoscaler-node-group-min-size"
	AnnotationMaxSize = v1alpha1.AnnotationKeyAutoscalerMaxSize
)

// Bounds are how small and how large the autoscaler makes a group.
type Bounds struct{ Min, Max int32 }

// ErrNoGroup is returned for a deployment without AnnotationMaxSize, or one that is being deleted: the
// autoscaler is to leave it alone.
var ErrNoGroup = errors.New("it is not to be scaled")

// BoundsOf returns the bounds of a deployment: the minimum is 0 unless given. The error, if not
// ErrNoGroup, says what is wrong with the annotations.
func BoundsOf(deployment *v1alpha1.MachineDeployment) (Bounds, error) {
	text, given := deployment.Annotations[AnnotationMaxSize]
	if !given || !deployment.DeletionTimestamp.IsZero() {
		return Bounds{}, ErrNoGroup
	}
	most, err := size(AnnotationMaxSize, text)
	if err != nil {
		return Bounds{}, err
	}
	least := int32(0)
	if text, given = deployment.Annotations[AnnotationMinSize]; given {
		if least, err = size(AnnotationMinSize, text); err != nil {
			return Bounds{}, err
		}
	}
	if least > most {
		return Bounds{}, fmt.Errorf("annotation %s: %d is above %s, %d", AnnotationMinSize, least, AnnotationMaxSize, most)
	}
	return Bounds{least, most}, nil
}

func size(annotation, text string) (int32, error) {
	n, err := strconv.ParseInt(text, 10, 32)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("annotation %s: %q is not a number from 0 on", annotation, text)
	}
	return int32(n), nil
}

// Group returns a deployment as a group, whose ID is its name. The error, if not ErrNoGroup, says what
// keeps it from being one. One without a template of its nodes is none: the autoscaler would give up
// its whole round for it.
func Group(deployment *v1alpha1.MachineDeployment, class *v1alpha1.MachineClass) (*autoscalerpb.NodeGroup, error) {
	bounds, err := BoundsOf(deployment)
	if err != nil {
		return nil, err
	}
	if _, err := Template(deployment, class); err != nil {
		return nil, err
	}
	return &autoscalerpb.NodeGroup{
		Id: deployment.Name, MinSize: bounds.Min, MaxSize: bounds.Max,
		Debug: fmt.Sprintf("MachineDeployment %s/%s (%d to %d)", deployment.Namespace, deployment.Name, bounds.Min, bounds.Max),
	}, nil
}

// resourceGPU is how a MachineClass names GPUs, and nodeGPU is what a node calls them.
const (
	resourceGPU corev1.ResourceName = "gpu"
	nodeGPU     corev1.ResourceName = "nvidia.com/gpu"
)
