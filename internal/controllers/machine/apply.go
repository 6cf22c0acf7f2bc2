package machine

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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
		s.machine.Status.Addresses = mergeAddresses(s.machine.Status.Addresses, found)
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
