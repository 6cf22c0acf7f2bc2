package machine

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
)

// defaultPriority is what every Machine gets that has no other.
const defaultPriority = "3"

// patchMachine changes the metadata and spec of the Machine, if the change is one.
func (c *Controller) patchMachine(ctx context.Context, s *scope, change func(*v1alpha1.Machine)) error {
	changed := s.stored.DeepCopy()
	change(changed)
	if equality.Semantic.DeepEqual(s.stored, changed) {
		return nil
	}
	if err := c.written.Patch(ctx, c.Client, changed, s.stored); err != nil {
		return fmt.Errorf("patching machine %s: %w", s.machine.Name, err)
	}
	s.machine.ObjectMeta, s.machine.Spec = *changed.ObjectMeta.DeepCopy(), *changed.Spec.DeepCopy()
	s.stored = changed
	return nil
}

// recordIdentity stores which instance is the Machine's, in one write.
func (c *Controller) recordIdentity(ctx context.Context, s *scope, found instance.Instance) error {
	if c.Target == nil {
		s.reachable(found)
	}
	return c.patchMachine(ctx, s, func(machine *v1alpha1.Machine) {
		machine.Spec.ProviderID = found.ProviderID
		if c.Target != nil {
			metav1.SetMetaDataLabel(&machine.ObjectMeta, v1alpha1.NodeLabelKey, found.NodeName)
		}
		if machine.Annotations[v1alpha1.AnnotationKeyMachinePriority] == "" {
			metav1.SetMetaDataAnnotation(&machine.ObjectMeta, v1alpha1.AnnotationKeyMachinePriority, defaultPriority)
		}
	})
}

// patchNode changes the node, if the change is one. Only a change of its taints, which
// replaces their list, is locked: the kubelet's writes would make others fail for
// nothing. The change sees no status.
func (c *Controller) patchNode(ctx context.Context, node *corev1.Node, change func(*corev1.Node) error) (*corev1.Node, error) {
	// Without the status, which is most of a node and is not written: comparing it is dear.
	before := &corev1.Node{ObjectMeta: node.ObjectMeta, Spec: node.Spec}
	changed := before.DeepCopy()
	if err := change(changed); err != nil {
		return node, err
	}
	if equality.Semantic.DeepEqual(before, changed) {
		return node, nil
	}
	patch := client.StrategicMergeFrom(before)
	if !equality.Semantic.DeepEqual(node.Spec.Taints, changed.Spec.Taints) {
		patch = client.StrategicMergeFrom(before, client.MergeFromWithOptimisticLock{})
	}
	if err := c.Target.Client().Patch(ctx, changed, patch); err != nil {
		return node, fmt.Errorf("patching node %s: %w", node.Name, err)
	}
	c.nodes.Wrote(changed)
	return changed, nil
}

// patchNodeStatus does the same for the status, whose lists are merged by their keys.
func (c *Controller) patchNodeStatus(ctx context.Context, node *corev1.Node, change func(*corev1.Node)) (*corev1.Node, error) {
	before := &corev1.Node{ObjectMeta: node.ObjectMeta, Status: node.Status}
	changed := before.DeepCopy()
	change(changed)
	if equality.Semantic.DeepEqual(node.Status, changed.Status) {
		return node, nil
	}
	if err := c.Target.Client().Status().Patch(ctx, changed, client.StrategicMergeFrom(before)); err != nil {
		return node, fmt.Errorf("patching the status of node %s: %w", node.Name, err)
	}
	c.nodes.Wrote(changed)
	return changed, nil
}

// recordNode stores what a Machine turned out to be that did not say it.
func (c *Controller) recordNode(ctx context.Context, s *scope, found instance.Instance) error {
	return c.patchMachine(ctx, s, func(machine *v1alpha1.Machine) {
		if machine.Spec.ProviderID == "" {
			machine.Spec.ProviderID = found.ProviderID
		}
		if found.NodeName != "" {
			metav1.SetMetaDataLabel(&machine.ObjectMeta, v1alpha1.NodeLabelKey, found.NodeName)
		}
	})
}
