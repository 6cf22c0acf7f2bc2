package virtualmachine

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
)

// swapAuthority makes somebody else authoritative, if nobody wrote the VM since vm was
// read; otherwise the error is a conflict, and nothing changed. Afterwards vm is as it is
// stored.
func (c *Controller) swapAuthority(ctx context.Context, vm *v1alpha1.VirtualMachine, next v1alpha1.VirtualMachineAuthority) error {
	return c.compareAndSwap(ctx, vm, func(status *v1alpha1.VirtualMachineStatus) {
		has := status.VirtualMachineAuthority
		status.VirtualMachineAuthority = next
		if has.ActivePodName == next.ActivePodName {
			return
		}
		reserved := next.ActivePodUID == ""
		if reserved && (next.VolumeClaimName == "" || next.VolumeClaimName != has.VolumeClaimName) {
			status.ImagePrepared = false // another disk, and an empty one
		}
		// What was last said was said of another Pod.
		meta.SetStatusCondition(&status.Conditions, metav1.Condition{
			Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: reasonCreating,
			Message: fmt.Sprintf("Creating pod %s.", next.ActivePodName), LastTransitionTime: metav1.NewTime(c.Clock.Now()),
			ObservedGeneration: vm.Generation,
		})
	})
}

// recordPrepared writes that the image is on the disk, under the same condition.
func (c *Controller) recordPrepared(ctx context.Context, vm *v1alpha1.VirtualMachine) error {
	return c.compareAndSwap(ctx, vm, func(status *v1alpha1.VirtualMachineStatus) { status.ImagePrepared = true })
}

func (c *Controller) compareAndSwap(ctx context.Context, vm *v1alpha1.VirtualMachine, change func(*v1alpha1.VirtualMachineStatus)) error {
	next := vm.DeepCopy()
	change(&next.Status)
	err := c.Client.Status().Patch(ctx, next, client.MergeFromWithOptions(vm.DeepCopy(), client.MergeFromWithOptimisticLock{}))
	if err != nil {
		return fmt.Errorf("status of virtual machine %s: %w", vm.Name, err)
	}
	*vm = *next
	return nil
}

// writeProgress writes what people and other programs are told, if it changed. It never
// touches the authority, and waits for nobody else's write.
func (c *Controller) writeProgress(ctx context.Context, p *pass, failure error) error {
	before := p.vm
	next := before.DeepCopy()
	report := c.reports.of(before)
	found := look(before, view{
		pod: p.active, report: report, held: p.held, failure: failure, addresses: p.addresses,
		answers: p.active != nil && c.streams.open(client.ObjectKeyFromObject(before), p.active.Name),
	})
	status := &next.Status
	status.Phase, status.NodeName, status.Addresses = found.phase, found.node, found.addresses
	if failure == nil {
		status.ObservedGeneration = next.Generation
	}
	for _, condition := range found.conditions {
		condition.ObservedGeneration = status.ObservedGeneration
		condition.LastTransitionTime = metav1.NewTime(p.now)
		meta.SetStatusCondition(&status.Conditions, condition)
	}
	if found.unscheduled {
		meta.RemoveStatusCondition(&status.Conditions, v1alpha1.ConditionScheduled)
	}
	if equality.Semantic.DeepEqual(before.Status, next.Status) {
		return nil
	}
	if err := c.Client.Status().Patch(ctx, next, client.MergeFrom(before)); err != nil {
		return fmt.Errorf("status of virtual machine %s: %w", before.Name, err)
	}
	c.explain(before, next, p.active)
	p.vm = next
	return nil
}

// explain tells users of a change, once: as often as the status says something new.
func (c *Controller) explain(before, after *v1alpha1.VirtualMachine, pod *corev1.Pod) {
	was := meta.FindStatusCondition(before.Status.Conditions, v1alpha1.ConditionReady)
	is := meta.FindStatusCondition(after.Status.Conditions, v1alpha1.ConditionReady)
	if is == nil || !news(was, is) {
		return
	}
	what := telling{reason: is.Reason, message: is.Message}
	if is.Reason == reasonRunning {
		what.message = ""
	}
	if pod != nil {
		what.pod = pod.UID
	}
	if !c.told.isNews(client.ObjectKeyFromObject(after), what) {
		return
	}
	switch {
	case is.Reason == reasonRunning:
		c.Events.Eventf(after, corev1.EventTypeNormal, reasonRunning, "Running on %s", after.Status.NodeName)
	case pod != nil && finished(pod):
		kind := corev1.EventTypeWarning
		if endingOf(pod).peaceful() {
			kind = corev1.EventTypeNormal
		}
		c.Events.Eventf(after, kind, is.Reason, "The hypervisor in pod %s ended: %s", pod.Name, is.Message)
	case is.Reason == v1alpha1.ReasonUnschedulable || is.Reason == reasonLost || pod == nil && !usual(is.Reason):
		c.Events.Event(after, corev1.EventTypeWarning, is.Reason, is.Message)
	}
}

// usual reports whether every VM without a Pod may give this reason for a while.
func usual(reason string) bool {
	return reason == reasonCreating || reason == reasonTerminating || reason == reasonVolumePending
}

// news reports whether a condition says something that it did not say before.
func news(was, is *metav1.Condition) bool {
	return was == nil || was.Reason != is.Reason || is.Reason != reasonRunning && was.Message != is.Message
}
