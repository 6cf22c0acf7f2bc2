package crash

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/inplaceupdate"
)

// updates contains the scenarios in which nodes are updated in place. The test acts as their agent, since that of
// a simulated node checks only once a second.
var updates = []scenario{
	{
		name: "update in place", also: []setup{apart},
		given:  givenBothClasses(2, inPlace),
		act:    inTurn(beginUpdate, updateOne, updateOne),
		want:   updatedInPlace(2),
		always: both(both(most(2), least(1)), noneReplaced),
	},
}

// inPlace makes the MachineDeployment update nodes in place, one after another.
func inPlace(deployment *v1alpha1.MachineDeployment) {
	deployment.Spec.Strategy = v1alpha1.MachineDeploymentStrategy{
		Type: v1alpha1.InPlaceUpdateMachineDeploymentStrategyType,
		InPlaceUpdate: &v1alpha1.InPlaceUpdateMachineDeployment{
			UpdateConfiguration: v1alpha1.UpdateConfiguration{MaxSurge: ptr.To(intstr.FromInt32(0)), MaxUnavailable: ptr.To(intstr.FromInt32(1))},
			OrchestrationType:   v1alpha1.OrchestrationTypeAuto,
		},
	}
}

// updateOne acts as the agent of the next node that is ready for its update.
func updateOne(ctx context.Context, r *run) error {
	ready, err := r.awaitReady(ctx)
	if err != nil {
		return err
	}
	return r.mergeNode(ctx, ready, labelNode(v1alpha1.LabelKeyNodeUpdateResult, v1alpha1.LabelValueNodeUpdateSuccessful))
}

// awaitReady waits for a node that is ready for its update, and returns its name.
func (r *run) awaitReady(ctx context.Context) (name string, err error) {
	err = r.await(ctx, "a node that is ready for its update", func(ctx context.Context, r *run) error {
		err := r.eachNode(ctx, func(node *corev1.Node) error {
			if waitsForAgent(node) {
				name = node.Name
			}
			return nil
		})
		if err == nil && name == "" {
			err = errors.New("there is none")
		}
		return err
	})
	return name, err
}

// waitsForAgent reports whether a node is ready for its update.
func waitsForAgent(node *corev1.Node) bool {
	return node.Labels[v1alpha1.LabelKeyNodeUpdateResult] == "" && wantText(node, v1alpha1.NodeInPlaceUpdate, v1alpha1.ReadyForUpdate)
}

// wantText reports whether a node has a condition with a reason.
func wantText(node *corev1.Node, condition corev1.NodeConditionType, reason string) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == condition && c.Reason == reason })
}

// updatedInPlace checks that that many Machines run in the MachineSet of the new class, and that no trace of the
// update remains.
func updatedInPlace(replicas int) func(context.Context, *run) error {
	return func(ctx context.Context, r *run) error {
		sets, machines := &v1alpha1.MachineSetList{}, &v1alpha1.MachineList{}
		if err := errors.Join(r.list(ctx, sets), r.list(ctx, machines)); err != nil {
			return err
		}
		at := slices.IndexFunc(sets.Items, func(set v1alpha1.MachineSet) bool { return set.Spec.Template.Spec.Class.Name == newClass })
		if at < 0 {
			return errors.New("there is no set of the new class")
		}
		for i := range machines.Items {
			if err := r.inUse(ctx, &machines.Items[i], &sets.Items[at]); err != nil {
				return fmt.Errorf("machine %s: %w", machines.Items[i].Name, err)
			}
		}
		return running(replicas)(ctx, r)
	}
}

// inUse checks that a Machine belongs to a MachineSet, and that its node is uncordoned.
func (r *run) inUse(ctx context.Context, machine *v1alpha1.Machine, set *v1alpha1.MachineSet) error {
	if !metav1.IsControlledBy(machine, set) || inplaceupdate.Moved(machine) {
		return fmt.Errorf("it is not one of set %s yet", set.Name)
	}
	node := &corev1.Node{}
	if err := r.target.Client.Get(ctx, client.ObjectKey{Name: machine.Name}, node); err != nil {
		return err
	}
	protected := node.Annotations[v1alpha1.AnnotationKeyScaleDownDisabledByMCM] != ""
	if inplaceupdate.Labelled(node) || node.Spec.Unschedulable || protected || !wantText(node, v1alpha1.NodeInPlaceUpdate, v1alpha1.UpdateSuccessful) {
		return fmt.Errorf("its node is not in use yet: labels %v, annotations %v", node.Labels, slices.Sorted(maps.Keys(node.Annotations)))
	}
	return nil
}

// noneReplaced requires that no Machine is deleted or created.
func noneReplaced(_ *run, was, is moment) error {
	for name := range was.machines {
		if machine, exists := is.machines[name]; !exists || !machine.DeletionTimestamp.IsZero() {
			return fmt.Errorf("%w: %s, whose node is updated in place", errVictim, name)
		}
	}
	for name := range is.machines {
		if _, existed := was.machines[name]; !existed {
			return fmt.Errorf("%w: %s is made, while nodes are updated in place", errTooMany, name)
		}
	}
	return nil
}
