package autoscaler

import (
	"cmp"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// maxPods is the number of Pods that a node can run if its class does not set it.
const maxPods = 110

// Template returns a node that represents the new nodes of a deployment. It uses the nodeTemplate of the class,
// which is nil if it does not exist, and that of the Machines. The error describes what is missing.
func Template(deployment *v1alpha1.MachineDeployment, class *v1alpha1.MachineClass) (*corev1.Node, error) {
	name := deployment.Spec.Template.Spec.Class.Name
	if class == nil {
		return nil, fmt.Errorf("MachineClass %q does not exist", name)
	}
	of := class.NodeTemplate
	if of == nil || of.Capacity.Cpu().IsZero() || of.Capacity.Memory().IsZero() {
		return nil, fmt.Errorf("MachineClass %q has no nodeTemplate with cpu and memory", name)
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: deployment.Name + "-template", Labels: map[string]string{
		corev1.LabelOSStable:           "linux",
		corev1.LabelArchStable:         cmp.Or(ptr.Deref(of.Architecture, ""), "amd64"),
		corev1.LabelInstanceTypeStable: of.InstanceType,
		corev1.LabelTopologyRegion:     of.Region,
		corev1.LabelTopologyZone:       of.Zone,
	}}}
	node.Labels[corev1.LabelHostname] = node.Name
	node.Status.Capacity = capacity(of)
	node.Status.Allocatable = node.Status.Capacity.DeepCopy()
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	if own := deployment.Spec.Template.Spec.NodeTemplateSpec; own.Labels != nil || own.Annotations != nil || own.Spec.Taints != nil {
		maps.Copy(node.Labels, own.Labels)
		node.Annotations, node.Spec.Taints = maps.Clone(own.Annotations), own.DeepCopy().Spec.Taints
	}
	return node, nil
}

func capacity(of *v1alpha1.NodeTemplate) corev1.ResourceList {
	list := of.Capacity.DeepCopy()
	maps.Copy(list, of.VirtualCapacity)
	if gpus, given := list[resourceGPU]; given {
		delete(list, resourceGPU)
		if !gpus.IsZero() {
			list[nodeGPU] = gpus
		}
	}
	if _, given := list[corev1.ResourcePods]; !given {
		list[corev1.ResourcePods] = *resource.NewQuantity(maxPods, resource.DecimalSI)
	}
	return list
}
