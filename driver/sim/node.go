package sim

import (
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/driver/sim/internal/spec"
)

// newVM returns the VM that a creation asks for.
func (d *Driver) newVM(c call, class *v1alpha1.MachineClass) VM {
	now := time.Now()
	v := VM{
		Namespace: c.namespace, Machine: c.name, NodeName: c.name,
		Pool: c.spec.Pool, Tags: maps.Clone(c.spec.Tags), Zone: c.spec.Zone, APIGroup: c.spec.APIGroup,
		CreatedAt: now, VisibleAt: now.Add(c.spec.VisibleAfter),
		Initialized: !d.config.RequireInitialize,
	}
	if c.spec.Join == spec.JoinNever {
		return v
	}
	v.Node = &NodePlan{
		JoinAt:   now.Add(d.jittered(c, "joinDelay", c.spec.JoinDelay)),
		NotReady: c.spec.Join == spec.JoinNotReady,
		Labels:   nodeLabels(c, class.NodeTemplate),
		Taints:   slices.Clone(c.spec.NodeTaints),
		Capacity: nodeCapacity(class.NodeTemplate),
	}
	if c.spec.Join == spec.JoinFlap {
		v.Node.FlapInterval = c.spec.FlapInterval
	}
	return v
}

// nodeLabels returns the labels that a kubelet and a cloud provider set.
func nodeLabels(c call, template *v1alpha1.NodeTemplate) map[string]string {
	labels := map[string]string{
		corev1.LabelHostname:   c.name,
		corev1.LabelOSStable:   "linux",
		corev1.LabelArchStable: "amd64",
	}
	if template != nil {
		for label, value := range map[string]string{
			corev1.LabelInstanceTypeStable: template.InstanceType,
			corev1.LabelTopologyRegion:     template.Region,
			corev1.LabelTopologyZone:       template.Zone,
		} {
			if value != "" {
				labels[label] = value
			}
		}
		if template.Architecture != nil && *template.Architecture != "" {
			labels[corev1.LabelArchStable] = *template.Architecture
		}
	}
	if c.spec.Zone != "" {
		labels[corev1.LabelTopologyZone] = c.spec.Zone
	}
	maps.Copy(labels, c.spec.NodeLabels)
	return labels
}

// nodeCapacity returns the default capacity, overridden by that of the class.
func nodeCapacity(template *v1alpha1.NodeTemplate) corev1.ResourceList {
	capacity := corev1.ResourceList{
		corev1.ResourceCPU:              resource.MustParse("2"),
		corev1.ResourceMemory:           resource.MustParse("4Gi"),
		corev1.ResourceEphemeralStorage: resource.MustParse("20Gi"),
		corev1.ResourcePods:             resource.MustParse("110"),
	}
	if template != nil {
		maps.Copy(capacity, template.Capacity)
	}
	// gpu is a name of MachineClasses, not a resource of nodes.
	delete(capacity, "gpu")
	return capacity
}
