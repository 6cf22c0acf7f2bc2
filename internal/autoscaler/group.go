// Package autoscaler represents MachineDeployments to the Kubernetes cluster-autoscaler. It provides the node
// groups and their limits, the instances of a group, templates of new nodes, and the allowed changes of a
// group.
//
// The package is pure. Package service reads and writes the objects.
package autoscaler

import (
	"errors"
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	autoscalerpb "github.com/millwright-dev/millwright/proto/autoscaler"
)

// Annotations with the limits of a MachineDeployment. They have the same names as in the autoscaler's provider
// for Cluster API.
const (
	AnnotationMinSize = "cluster.x-k8s.io/cluster-api-autoscaler-node-group-min-size"
	AnnotationMaxSize = v1alpha1.AnnotationKeyAutoscalerMaxSize
)

// Bounds are the minimum and maximum size of a group.
type Bounds struct{ Min, Max int32 }

// ErrNoGroup is returned for a deployment that the autoscaler must ignore, because it has no AnnotationMaxSize
// or is being deleted.
var ErrNoGroup = errors.New("it is not a node group")

// BoundsOf returns the bounds of a deployment. The minimum defaults to 0. If the annotations are invalid, the
// error describes the problem. It is ErrNoGroup if the deployment is not a group.
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
		return Bounds{}, fmt.Errorf("annotation %s: %d exceeds %s, which is %d", AnnotationMinSize, least, AnnotationMaxSize, most)
	}
	return Bounds{least, most}, nil
}

func size(annotation, text string) (int32, error) {
	n, err := strconv.ParseInt(text, 10, 32)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("annotation %s: %q is not a number greater than or equal to 0", annotation, text)
	}
	return int32(n), nil
}

// Group returns a deployment as a group, whose ID is the name of the deployment. The error is ErrNoGroup or
// describes the problem. A deployment without a node template cannot be a group, because the autoscaler would
// abort its whole loop for it.
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

// resourceGPU is the name of GPUs in a MachineClass, and nodeGPU is their name in a node.
const (
	resourceGPU corev1.ResourceName = "gpu"
	nodeGPU     corev1.ResourceName = "nvidia.com/gpu"
)
