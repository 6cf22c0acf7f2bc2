package virtualmachine

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/conditions"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podspec"
)

// writeStatus writes the status if it changed, but for the authority. It does not fail when
// the VM has changed meanwhile.
func (c *Controller) writeStatus(ctx context.Context, p *pass, failure error) error {
	before, next := p.vm, p.vm.DeepCopy()
	next.Status = conditions.StatusOf(before, conditions.Observation{
		Pod: p.active, Report: c.hypervisors.Report(before), Cause: p.cause, Failure: failure, Addresses: p.addresses, Now: p.now, OneMachine: c.OneMachine,
		HasLease: p.active != nil && c.hypervisors.HasLease(client.ObjectKeyFromObject(before), p.active.Name),
		Served:   p.observedServer(c.hypervisors.DiskServer(before)),
		Target:   targetOf(p), Image: podspec.Image(before, c.settings), Settings: c.settings, Fence: p.fence, NoGrowth: p.noGrowth,
	})
	if equality.Semantic.DeepEqual(before.Status, next.Status) {
		return nil
	}
	patch := client.MergeFrom(before)
	if !equality.Semantic.DeepEqual(before.Status.Migration, next.Status.Migration) {
		// The switchover may have ended the migration meanwhile.
		patch = client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	}
	if err := c.Client.Status().Patch(ctx, next, patch); err != nil {
		return fmt.Errorf("writing the status of virtual machine %s: %w", before.Name, err)
	}
	c.announce(before, next, p)
	c.announceMigration(before, next)
	p.vm = next
	return nil
}

// targetOf returns the Pod of the last migration's target; nil if it is not known.
func targetOf(p *pass) *corev1.Pod {
	if p.vm.Status.Migration == nil {
		return nil
	}
	for _, pod := range p.pods {
		if pod.Name == p.vm.Status.Migration.TargetPodName {
			return pod
		}
	}
	return nil
}

// announceMigration sends an event when the target of a migration has reported that it runs the guest.
func (c *Controller) announceMigration(before, after *v1alpha1.VirtualMachine) {
	was, is := before.Status.Migration, after.Status.Migration
	if is == nil || is.Phase != v1alpha1.MigrationSucceeded || is.EndTime == nil || was.EndTime != nil {
		return
	}
	text := fmt.Sprintf("Migrated from node %s to %s", is.SourceNodeName, is.TargetNodeName)
	if is.Downtime != nil {
		text += fmt.Sprintf("; the guest stood still for %s", is.Downtime.Duration)
	}
	c.Events.Event(after, corev1.EventTypeNormal, "Migrated", text)
}

// announce sends an event when the condition Ready gets another reason, or the same one for a
// changed spec. A pass whose cache lacks the last write repeats no event.
func (c *Controller) announce(before, after *v1alpha1.VirtualMachine, p *pass) {
	was := meta.FindStatusCondition(before.Status.Conditions, v1alpha1.ConditionReady)
	is := meta.FindStatusCondition(after.Status.Conditions, v1alpha1.ConditionReady)
	if is == nil || was != nil && was.Reason == is.Reason && (is.Reason == conditions.ReasonRunning || was.ObservedGeneration == is.ObservedGeneration) {
		return
	}
	kind, text := conditions.EventFor(after, is, p.active)
	said := is.Reason + " " + text
	if p.active != nil {
		said += " " + string(p.active.UID)
	}
	if p.memory.events.News(v1alpha1.ConditionReady, said) && text != "" {
		c.Events.Event(after, kind, is.Reason, text)
	}
}
