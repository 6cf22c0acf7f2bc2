package translate

import (
	corev1 "k8s.io/api/core/v1"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// gpu is what classes call accelerators, and nvidiaGPU what nodes have and autoscalers
// take for the same.
const (
	gpu       corev1.ResourceName = "gpu"
	nvidiaGPU corev1.ResourceName = "nvidia.com/gpu"
)

// defaultOS is the operating system of nodes that say nothing else but their processor.
const defaultOS = "linux"

// TemplateStatus tells autoscalers what a node is like, by what its class and its template
// say. It is empty if neither says anything.
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
	status.NodeInfo = nodeInfo(node.Architecture, own)
	return status
}

// nodeInfo leaves out a processor that Cluster API does not know: it would refuse the whole.
func nodeInfo(architecture *string, own *infrav1.NodeTemplate) *infrav1.NodeInfo {
	info := infrav1.NodeInfo{}
	if own != nil {
		info.OperatingSystem = own.OperatingSystem
	}
	if architecture != nil {
		switch known := infrav1.Architecture(*architecture); known {
		case "amd64", "arm64", "s390x", "ppc64le":
			info.Architecture = known
		}
	}
	if info.Architecture != "" && info.OperatingSystem == "" {
		info.OperatingSystem = defaultOS
	}
	if info == (infrav1.NodeInfo{}) {
		return nil
	}
	return &info
}
