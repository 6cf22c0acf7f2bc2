package capi

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// persistSpec writes what changed of metadata and spec, if anything did.
func (c *Controller) persistSpec(ctx context.Context, s *scope) error {
	changed := s.stored.DeepCopy()
	changed.ObjectMeta, changed.Spec = *s.machine.ObjectMeta.DeepCopy(), *s.machine.Spec.DeepCopy()
	if equality.Semantic.DeepEqual(s.stored, changed) {
		return nil
	}
	if err := c.written.Patch(ctx, c.Client, changed, s.stored); err != nil {
		return fmt.Errorf("patching MillwrightMachine %s: %w", s.machine.Name, err)
	}
	s.machine.ObjectMeta, s.machine.Spec = *changed.ObjectMeta.DeepCopy(), *changed.Spec.DeepCopy()
	s.stored = changed
	return nil
}

// persist writes all that the pass changed, and then says what happened. The provider ID is
// written before Cluster API is told that there is a VM.
func (c *Controller) persist(ctx context.Context, s *scope, gone bool) error {
	if !gone {
		if err := c.persistSpec(ctx, s); err != nil {
			return client.IgnoreNotFound(err)
		}
		if err := c.persistStatus(ctx, s); err != nil {
			return client.IgnoreNotFound(err)
		}
	}
	for _, e := range s.events {
		c.Events.Event(s.machine, e.kind, e.reason, e.message)
	}
	return nil
}

func (c *Controller) persistStatus(ctx context.Context, s *scope) error {
	if equality.Semantic.DeepEqual(s.stored.Status, s.machine.Status) {
		return nil
	}
	changed := s.stored.DeepCopy()
	changed.Status = *s.machine.Status.DeepCopy()
	if err := c.written.PatchStatus(ctx, c.Client, changed, s.stored); err != nil {
		return fmt.Errorf("patching the status of MillwrightMachine %s: %w", s.machine.Name, err)
	}
	s.stored = changed
	return nil
}
