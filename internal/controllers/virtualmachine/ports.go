package virtualmachine

import (
	"context"
	"errors"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podspec"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podstate"
	"github.com/millwright-dev/millwright/internal/reconcile/apierror"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
)

// label gives the labels that Services select to the Pod of the authoritative hypervisor while its guest is ready, and
// to no other Pod of the VM. The readiness of the Pod itself is that of the hypervisor.
//
// It runs before the steps that may fail for long, for example because of a quota, so that clients do not stay with a
// guest that is not ready. If it fails itself, it does not prevent these steps, and ConfirmLabels returns the error.
func (p *hypervisorPods) label(ctx context.Context, s *scope) flow.Result {
	report := p.hypervisors.Report(s.vm)
	for _, pod := range s.pods {
		if !podspec.HasPorts(pod) || !podstate.Alive(pod) {
			continue
		}
		desired := podspec.ServiceLabels(s.vm)
		switch {
		case pod != s.active || !pod.DeletionTimestamp.IsZero():
			desired = nil
		case report.GetGuest() == nil && len(serviceLabels(pod)) > 0: // this process has no report yet
		case !report.GetGuest().GetReady():
			desired = nil
		}
		s.unlabeled = errors.Join(s.unlabeled, p.setServiceLabels(ctx, pod, desired))
	}
	return flow.Continue()
}

// confirmLabels fails if label has failed.
func (*hypervisorPods) confirmLabels(_ context.Context, s *scope) flow.Result {
	return flow.Fail(s.unlabeled)
}

// serviceLabels returns the labels of a Pod that Services select.
func serviceLabels(pod *corev1.Pod) map[string]string {
	return podspec.ServiceLabels(&v1alpha1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Labels: pod.Labels}})
}

// setServiceLabels writes the labels of a Pod that Services select, if they differ.
func (p *hypervisorPods) setServiceLabels(ctx context.Context, pod *corev1.Pod, desired map[string]string) error {
	has := serviceLabels(pod)
	if maps.Equal(has, desired) {
		return nil
	}
	next := pod.DeepCopy()
	maps.DeleteFunc(next.Labels, func(key, _ string) bool { _, found := has[key]; return found })
	maps.Copy(next.Labels, desired)
	if err := p.client.Patch(ctx, next, client.MergeFrom(pod)); apierror.IgnoreGone(err) != nil {
		return fmt.Errorf("changing the labels of pod %s: %w", pod.Name, err)
	}
	return nil
}

// Reasons of the condition GuestReady.
const (
	reasonProbeSucceeded = "ProbeSucceeded"
	reasonProbeFailed    = "ProbeFailed"
)

// guestReady sets or removes the condition GuestReady.
func guestReady(o observation, conditions *[]metav1.Condition, set func(metav1.Condition)) {
	if !podstate.Alive(o.active) || !podspec.HasPorts(o.active) {
		meta.RemoveStatusCondition(conditions, v1alpha1.ConditionGuestReady)
		return
	}
	guest := o.report.GetGuest()
	if guest == nil {
		return // keep the condition that the last process set
	}
	condition := metav1.Condition{Type: v1alpha1.ConditionGuestReady, Status: metav1.ConditionTrue, Reason: reasonProbeSucceeded}
	if !guest.GetReady() {
		condition.Status, condition.Reason, condition.Message = metav1.ConditionFalse, reasonProbeFailed, podstate.Truncate(guest.GetMessage())
	}
	set(condition)
}
