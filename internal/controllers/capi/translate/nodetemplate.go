package translate

import (
	"cmp"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// NodeTemplate overlays the node template of a class with that of a machine or template; nil if
// both are nil.
func NodeTemplate(class *v1alpha1.NodeTemplate, own *infrav1.NodeTemplate) *v1alpha1.NodeTemplate {
	made := class.DeepCopy()
	if own == nil {
		return made
	}
	if made == nil {
		made = &v1alpha1.NodeTemplate{}
	}
	if made.Capacity == nil && len(own.Capacity) > 0 {
		made.Capacity = corev1.ResourceList{}
	}
	maps.Copy(made.Capacity, own.Capacity)
	made.InstanceType = cmp.Or(own.InstanceType, made.InstanceType)
	made.Region = cmp.Or(own.Region, made.Region)
	made.Zone = cmp.Or(own.Zone, made.Zone)
	if own.Architecture != "" {
		made.Architecture = new(string(own.Architecture))
	}
	return made
}

// gpu is the name of accelerators in classes, and nvidiaGPU the resource of nodes that autoscalers
// take for the same.
const (
	gpu       corev1.ResourceName = "gpu"
	nvidiaGPU corev1.ResourceName = "nvidia.com/gpu"
)

// architectures are those that Cluster API allows.
var architectures = []infrav1.Architecture{"amd64", "arm64", "s390x", "ppc64le"}

// TemplateStatus returns the capacity and platform of a node for autoscalers, from the node templates
// of a class and of a MillwrightMachineTemplate. Both may be nil.
func TemplateStatus(class *v1alpha1.NodeTemplate, own *infrav1.NodeTemplate) infrav1.MillwrightMachineTemplateStatus {
	var status infrav1.MillwrightMachineTemplateStatus
	node := NodeTemplate(class, own)
	if node == nil {
		return status
	}
	for name, quantity := range node.Capacity {
		if name == gpu {
			if _, named := node.Capacity[nvidiaGPU]; named || quantity.IsZero() {
				continue
			}
			name = nvidiaGPU
		}
		if status.Capacity == nil {
			status.Capacity = corev1.ResourceList{}
		}
		status.Capacity[name] = quantity.DeepCopy()
	}
	var info infrav1.NodeInfo
	if own != nil {
		info.OperatingSystem = own.OperatingSystem
	}
	if node.Architecture != nil && slices.Contains(architectures, infrav1.Architecture(*node.Architecture)) {
		info.Architecture = infrav1.Architecture(*node.Architecture)
		info.OperatingSystem = cmp.Or(info.OperatingSystem, "linux")
	}
	if info != (infrav1.NodeInfo{}) {
		status.NodeInfo = &info
	}
	return status
}
