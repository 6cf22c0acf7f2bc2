package virtualmachine

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podstate"
)

// statusWriter writes the status of VMs, and sends an event when the condition Ready changes.
type statusWriter struct {
	*cluster
	// oneMachine reports whether all hosts run on one machine.
	oneMachine bool
}

// write writes the status, except for the authority, if it changed. It also succeeds if the VM was changed in the
// meantime.
func (w *statusWriter) write(ctx context.Context, s *scope, failure error) error {
	before, next := s.vm, s.vm.DeepCopy()
	next.Status = statusOf(observation{
		scope: s, settings: w.settings(), oneMachine: w.oneMachine, failure: failure,
		report: w.hypervisors.Report(before), diskReport: w.hypervisors.DiskServer(before),
		silence:  w.hypervisors.Silence(before),
		hasLease: s.active != nil && w.hypervisors.HasLease(client.ObjectKeyFromObject(before), s.active.Name),
	})
	if equality.Semantic.DeepEqual(before.Status, next.Status) {
		return nil
	}
	patch := client.MergeFrom(before)
	if !equality.Semantic.DeepEqual(before.Status.Migration, next.Status.Migration) {
		// The switchover may have completed the migration in the meantime.
		patch = client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	}
	if err := w.client.Status().Patch(ctx, next, patch); err != nil {
		return fmt.Errorf("writing the status of virtual machine %s: %w", before.Name, err)
	}
	w.announce(before, next, s)
	w.announceMigration(before, next)
	w.announceConvergence(before, next)
	s.vm = next
	return nil
}

// announceMigration sends an event when the target of a migration has reported that it runs the guest.
func (w *statusWriter) announceMigration(before, after *v1alpha1.VirtualMachine) {
	last, current := before.Status.Migration, after.Status.Migration
	if current == nil || current.Phase != v1alpha1.MigrationSucceeded || current.EndTime == nil || last.EndTime != nil {
		return
	}
	text := fmt.Sprintf("Migrated from node %s to node %s", current.SourceNodeName, current.TargetNodeName)
	if current.Downtime != nil {
		text += fmt.Sprintf("; the guest was paused for %s", current.Downtime.Duration)
	}
	w.events.Event(after, corev1.EventTypeNormal, "Migrated", text)
}

// announceConvergence sends an event when the hypervisor has reported that the copy of a migration does not converge, or
// that it is forced to complete.
func (w *statusWriter) announceConvergence(before, after *v1alpha1.VirtualMachine) {
	last, current := before.Status.Migration, after.Status.Migration
	if current == nil || last != nil && last.Convergence == current.Convergence {
		return
	}
	switch current.Convergence {
	case v1alpha1.MigrationNotConverging:
		w.events.Eventf(after, corev1.EventTypeWarning, "MigrationNotConverging",
			"The guest writes memory faster than it is copied to pod %s; if this continues, spec.migration.completionTimeoutPolicy applies. "+
				"A higher spec.migration.bandwidth or downtimeLimitMilliseconds helps the next migration", current.TargetPodName)
	case v1alpha1.MigrationForced:
		w.events.Eventf(after, corev1.EventTypeNormal, "MigrationForced",
			"The time for the migration to pod %s is running out: the guest will be stopped for the last part of the copy, without regard to the downtime limit", current.TargetPodName)
	}
}

// announce sends an event when the condition Ready gets another reason, or keeps its reason after the spec changed.
// It does not repeat the event if the cache does not have the last write yet.
func (w *statusWriter) announce(before, after *v1alpha1.VirtualMachine, s *scope) {
	was := meta.FindStatusCondition(before.Status.Conditions, v1alpha1.ConditionReady)
	is := meta.FindStatusCondition(after.Status.Conditions, v1alpha1.ConditionReady)
	if is == nil || was != nil && was.Reason == is.Reason && (is.Reason == reasonRunning || was.ObservedGeneration == is.ObservedGeneration) {
		return
	}
	kind, text := eventFor(after, is, s.active)
	key := is.Reason + " " + text
	if s.active != nil {
		key += " " + string(s.active.UID)
	}
	if s.memory.events.News(v1alpha1.ConditionReady, key) && text != "" {
		w.events.Event(after, kind, is.Reason, text)
	}
}

// eventFor returns the type and the message of the event for a condition Ready. If the message is empty, no event is
// needed.
func eventFor(vm *v1alpha1.VirtualMachine, ready *metav1.Condition, pod *corev1.Pod) (kind, text string) {
	switch {
	case ready.Reason == reasonRunning:
		return corev1.EventTypeNormal, "Running on " + vm.Status.NodeName
	case pod != nil && podstate.Finished(pod):
		kind = corev1.EventTypeWarning
		if podstate.EndOf(pod).Intended() {
			kind = corev1.EventTypeNormal
		}
		return kind, fmt.Sprintf("The hypervisor in pod %s terminated: %s", pod.Name, ready.Message)
	case slices.Contains(warnings, ready.Reason) || pod == nil && !transient(ready.Reason):
		return corev1.EventTypeWarning, ready.Message
	}
	return "", ""
}

// warnings are the reasons that cause a warning event while the hypervisor is alive.
var warnings = []string{v1alpha1.ReasonUnschedulable, v1alpha1.ReasonImagePullFailed, reasonLost, v1alpha1.ReasonNoSpace, v1alpha1.ReasonStorageFailed}

// transient reports whether a reason is expected for a VM without a Pod.
func transient(reason string) bool {
	return slices.Contains(reasonsOfStop, reason) ||
		reason == reasonCreating || reason == reasonTerminating || reason == reasonVolumePending || reason == reasonAddressPending || reason == v1alpha1.ReasonDiskServerStarting
}
