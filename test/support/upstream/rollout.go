package upstream

import (
	"context"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// roll performs one step of a rolling update, or of scaling.
func (c *controllerManager) roll(ctx context.Context, all *objects, d *v1alpha1.MachineDeployment, sets []*v1alpha1.MachineSet, current *v1alpha1.MachineSet) (bool, error) {
	// A Machine that was marked for deletion must not be replaced before the MachineSet is scaled.
	if _, err := c.revise(ctx, d, sets, current); err != nil {
		return true, err
	}
	old := slices.DeleteFunc(slices.Clone(sets), func(s *v1alpha1.MachineSet) bool { return s == current })
	rolling := slices.ContainsFunc(old, func(s *v1alpha1.MachineSet) bool { return s.Spec.Replicas > 0 })
	if wrote, err := c.mark(ctx, all, sets, current, rolling); wrote || err != nil {
		return wrote, err
	}
	desired := d.Spec.Replicas
	if rolling {
		desired = min(desired, current.Spec.Replicas+capacity(d, sets))
	}
	desired = max(desired, min(current.Spec.Replicas, d.Spec.Replicas))
	if wrote, err := c.resize(ctx, d, current, desired); wrote || err != nil {
		return wrote, err
	}
	return c.shrink(ctx, d, sets, current, old)
}

// revise gives the current MachineSet the highest revision, and copies it to the MachineDeployment.
func (c *controllerManager) revise(ctx context.Context, d *v1alpha1.MachineDeployment, sets []*v1alpha1.MachineSet, current *v1alpha1.MachineSet) (bool, error) {
	last, mine := lastRevision(sets), revisionOf(current)
	wrote, err := c.update(ctx, current, func() {
		if mine < last {
			metav1.SetMetaDataAnnotation(&current.ObjectMeta, v1alpha1.AnnotationKeyRevisionHistory, strconv.Itoa(mine))
			metav1.SetMetaDataAnnotation(&current.ObjectMeta, v1alpha1.AnnotationKeyRevision, strconv.Itoa(last+1))
		}
		if at := d.Annotations[v1alpha1.AnnotationKeyLastReplicaChange]; at != "" {
			metav1.SetMetaDataAnnotation(&current.ObjectMeta, v1alpha1.AnnotationKeyLastReplicaChange, at)
		}
	})
	if wrote || err != nil {
		return wrote, err
	}
	return c.update(ctx, d, func() {
		metav1.SetMetaDataAnnotation(&d.ObjectMeta, v1alpha1.AnnotationKeyRevision, current.Annotations[v1alpha1.AnnotationKeyRevision])
	})
}

// mark keeps autoscalers away from the nodes during a rollout, and Pods away from the nodes of old MachineSets.
// After the rollout, it reverts that.
func (c *controllerManager) mark(ctx context.Context, all *objects, sets []*v1alpha1.MachineSet, current *v1alpha1.MachineSet, rolling bool) (bool, error) {
	for _, set := range sets {
		if rolling && set != current {
			wrote, err := c.update(ctx, set, func() { metav1.SetMetaDataAnnotation(&set.ObjectMeta, v1alpha1.AnnotationKeyPreferNoSchedule, "True") })
			if wrote || err != nil {
				return wrote, err
			}
		}
		for _, machine := range all.members(set) {
			node := all.nodes[machine.Labels[v1alpha1.NodeLabelKey]]
			if node == nil {
				continue
			}
			wrote, err := c.update(ctx, node, func() { markNodeOf(node, machine, rolling, set != current) })
			if wrote || err != nil {
				return wrote, err
			}
		}
	}
	return false, nil
}

func markNodeOf(node *corev1.Node, machine *v1alpha1.Machine, rolling, old bool) {
	taint := corev1.Taint{Key: v1alpha1.TaintKeyPreferNoSchedule, Value: "True", Effect: corev1.TaintEffectPreferNoSchedule}
	tainted := slices.IndexFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.MatchTaint(&taint) })
	switch {
	case rolling && old && tainted < 0:
		node.Spec.Taints = append(node.Spec.Taints, taint)
	case !old && tainted >= 0:
		node.Spec.Taints = slices.Delete(node.Spec.Taints, tainted, tainted+1)
	}
	_, byMCM := node.Annotations[v1alpha1.AnnotationKeyScaleDownDisabledByMCM]
	switch {
	case rolling:
		metav1.SetMetaDataAnnotation(&node.ObjectMeta, v1alpha1.AnnotationKeyScaleDownDisabled, "true")
		metav1.SetMetaDataAnnotation(&node.ObjectMeta, v1alpha1.AnnotationKeyScaleDownDisabledByMCM, "true")
	case byMCM && machine.Status.CurrentStatus.PreserveExpiryTime == nil && machine.DeletionTimestamp == nil && !isPreserved(node):
		delete(node.Annotations, v1alpha1.AnnotationKeyScaleDownDisabled)
		delete(node.Annotations, v1alpha1.AnnotationKeyScaleDownDisabledByMCM)
	}
}

// isPreserved reports whether the node is preserved. Its taints and annotations then belong to the
// machine-controller.
func isPreserved(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == v1alpha1.NodePreserved })
}

func (c *controllerManager) resize(ctx context.Context, d *v1alpha1.MachineDeployment, set *v1alpha1.MachineSet, replicas int32) (bool, error) {
	return c.update(ctx, set, func() {
		sizes(d, set)
		set.Spec.Replicas = replicas
	})
}

// shrink scales old MachineSets down as long as enough Machines stay available.
func (c *controllerManager) shrink(ctx context.Context, d *v1alpha1.MachineDeployment, sets []*v1alpha1.MachineSet, current *v1alpha1.MachineSet, old []*v1alpha1.MachineSet) (bool, error) {
	_, unavailable := bounds(d)
	asked, available := int32(0), int32(0)
	for _, set := range sets {
		asked += set.Spec.Replicas
		available += set.Status.AvailableReplicas
	}
	spare := asked - (d.Spec.Replicas - unavailable) - (current.Spec.Replicas - current.Status.AvailableReplicas)
	for _, set := range old {
		broken := max(0, set.Spec.Replicas-set.Status.AvailableReplicas)
		fewer := min(set.Spec.Replicas, spare, max(broken, available-(d.Spec.Replicas-unavailable)))
		if fewer > 0 {
			return c.resize(ctx, d, set, set.Spec.Replicas-fewer)
		}
	}
	return false, nil
}
