package upstream

import (
	"context"
	"encoding/json"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// update is an in-place update.
type update struct {
	*controllerManager
	all        *objects
	deployment *v1alpha1.MachineDeployment
	// old are all MachineSets except the current one.
	old     []*v1alpha1.MachineSet
	current *v1alpha1.MachineSet
}

// inPlace performs one step of an in-place update.
func (c *controllerManager) inPlace(ctx context.Context, all *objects, d *v1alpha1.MachineDeployment, current *v1alpha1.MachineSet) (bool, error) {
	sets := all.setsOf(d)
	old := slices.DeleteFunc(slices.Clone(sets), func(s *v1alpha1.MachineSet) bool { return s == current })
	rolling := slices.ContainsFunc(old, func(s *v1alpha1.MachineSet) bool { return s.Spec.Replicas > 0 })
	u := &update{c, all, d, old, current}
	for _, take := range []func(context.Context) (bool, error){
		func(ctx context.Context) (bool, error) { return c.revise(ctx, d, sets, current) },
		u.createNone,
		func(ctx context.Context) (bool, error) { return c.mark(ctx, all, sets, current, rolling) },
		u.came, u.left, u.moveOne, u.selectOne,
	} {
		if wrote, err := take(ctx); wrote || err != nil {
			return wrote, err
		}
	}
	return false, nil
}

// createNone makes old MachineSets create no Machines.
func (u *update) createNone(ctx context.Context) (bool, error) {
	key := v1alpha1.LabelKeyMachineSetScaleUpDisabled
	for _, set := range u.old {
		if set.Spec.Replicas > 0 && set.Labels[key] == "" {
			labels := map[string]any{key: "true"}
			return u.patch(ctx, set, map[string]any{"labels": labels}, ".metadata.labels."+key)
		}
	}
	return false, nil
}

// patch merges metadata into an object.
func (u *update) patch(ctx context.Context, object client.Object, metadata map[string]any, fields ...string) (bool, error) {
	body, err := json.Marshal(map[string]any{"metadata": metadata})
	if err != nil {
		return false, err
	}
	return u.wrote(object, "patch", "", fields, u.client.Patch(ctx, object, client.RawPatch(types.MergePatchType, body)))
}

// node returns the node of a Machine, or nil.
func (u *update) node(machine *v1alpha1.Machine) *corev1.Node {
	return u.all.nodes[machine.Labels[v1alpha1.NodeLabelKey]]
}

// came counts the Machines that have moved to the current MachineSet, and then uncordons their nodes.
func (u *update) came(ctx context.Context) (bool, error) {
	members := u.all.members(u.current)
	more := min(int32(len(members)), u.deployment.Spec.Replicas)
	if slices.ContainsFunc(members, isMoved) && u.current.Spec.Replicas < more {
		return u.resize(ctx, u.deployment, u.current, more)
	}
	for _, machine := range members {
		if isMoved(machine) {
			return u.patch(ctx, machine, map[string]any{"labels": map[string]any{updateResult: nil}}, ".metadata.labels."+updateResult+" gone")
		}
		node := u.node(machine)
		if node == nil || !updated(node) {
			continue
		}
		return u.update(ctx, node, func() { use(node) })
	}
	return false, nil
}

// use uncordons an updated node.
func use(node *corev1.Node) {
	for _, key := range []string{v1alpha1.LabelKeyNodeCandidateForUpdate, v1alpha1.LabelKeyNodeSelectedForUpdate, updateResult} {
		delete(node.Labels, key)
	}
	node.Spec.Unschedulable = false
	taint := corev1.Taint{Key: v1alpha1.TaintKeyCriticalComponentsNotReady, Effect: corev1.TaintEffectNoSchedule}
	if !slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.MatchTaint(&taint) }) {
		node.Spec.Taints = append(node.Spec.Taints, taint)
	}
}

// isMoved reports whether a Machine has moved to its MachineSet by an update, and is not counted yet.
func isMoved(machine *v1alpha1.Machine) bool {
	return machine.Labels[updateResult] == v1alpha1.LabelValueNodeUpdateSuccessful
}

// left sets the replicas of old MachineSets to their number of Machines.
func (u *update) left(ctx context.Context) (bool, error) {
	for _, set := range u.old {
		if is := int32(len(u.all.members(set))); is < set.Spec.Replicas {
			return u.resize(ctx, u.deployment, set, is)
		}
	}
	return false, nil
}

// moveOne transfers a Machine whose node was updated to the current MachineSet.
func (u *update) moveOne(ctx context.Context) (bool, error) {
	if int32(len(u.all.members(u.current))) >= u.deployment.Spec.Replicas {
		return false, nil
	}
	hash := v1alpha1.DefaultMachineDeploymentUniqueLabelKey
	for _, set := range u.old {
		for _, machine := range u.all.members(set) {
			node := u.node(machine)
			if node == nil || !updated(node) || updateReason(node) != v1alpha1.UpdateSuccessful || machine.Status.CurrentStatus.Phase == v1alpha1.MachineInPlaceUpdating {
				continue
			}
			owner := metav1.NewControllerRef(u.current, v1alpha1.SchemeGroupVersion.WithKind("MachineSet"))
			labels := map[string]any{hash: u.current.Labels[hash], updateResult: v1alpha1.LabelValueNodeUpdateSuccessful}
			return u.patch(ctx, machine, map[string]any{"labels": labels, "ownerReferences": []any{owner}},
				".metadata.labels."+hash, ".metadata.labels."+updateResult, ".metadata.ownerReferences")
		}
	}
	return false, nil
}

// selectOne marks the nodes of old MachineSets as candidates, and selects one if enough Machines stay available.
func (u *update) selectOne(ctx context.Context) (bool, error) {
	_, unavailable := bounds(u.deployment)
	spare := unavailable - u.deployment.Spec.Replicas + u.current.Status.AvailableReplicas
	var free []*corev1.Node
	for _, set := range u.old {
		spare += set.Status.AvailableReplicas
		for _, machine := range u.all.members(set) {
			node := u.node(machine)
			if node == nil || machine.DeletionTimestamp != nil {
				continue
			}
			wrote, err := u.label(ctx, node, v1alpha1.LabelKeyNodeCandidateForUpdate)
			if wrote || err != nil {
				return wrote, err
			}
			if node.Labels[v1alpha1.LabelKeyNodeSelectedForUpdate] == "" {
				free = append(free, node)
			} else {
				spare--
			}
		}
	}
	if len(free) == 0 || spare <= 0 || u.current.Spec.Replicas >= u.deployment.Spec.Replicas {
		return false, nil
	}
	return u.label(ctx, free[0], v1alpha1.LabelKeyNodeSelectedForUpdate)
}

func (u *update) label(ctx context.Context, node *corev1.Node, key string) (bool, error) {
	return u.update(ctx, node, func() { metav1.SetMetaDataLabel(&node.ObjectMeta, key, "true") })
}
