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
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// label gives the labels that Services select to the Pod of the authoritative hypervisor while its guest is ready, and
// then removes them from all other Pods of the VM. The readiness of the Pod itself is that of the hypervisor.
//
// After a switchover, the other Pods lose them only once the new Pod has them, so that the Service always has an endpoint.
// A Pod that is being deleted keeps them while the guest is ready. Kubernetes then sends connections to it only if the
// Service has no other endpoint.
//
// It runs before the steps that may fail for long, for example because of a quota, so that clients do not stay with a
// guest that is not ready. If it fails itself, it does not prevent these steps, and ConfirmLabels returns the error.
func (p *hypervisorPods) label(ctx context.Context, s *scope) flow.Result {
	if hasClients(s.active) {
		var desired map[string]string
		if isReady(s, p.hypervisors.Report(s.vm)) {
			desired = podspec.ServiceLabels(s.vm)
		}
		if s.unlabeled = p.setServiceLabels(ctx, s.active, desired); s.unlabeled != nil {
			return flow.Continue()
		}
	}
	for _, pod := range s.pods {
		if pod != s.active && hasClients(pod) {
			s.unlabeled = errors.Join(s.unlabeled, p.setServiceLabels(ctx, pod, nil))
		}
	}
	return flow.Continue()
}

// hasClients reports whether clients can connect to the guest at a Pod, which may be nil.
func hasClients(pod *corev1.Pod) bool { return podstate.Alive(pod) && podspec.HasPorts(pod) }

// isReady reports whether the guest of the authoritative hypervisor is ready for clients. Until the hypervisor has checked
// its guest, or this process has a report, the guest counts as ready if it was before: here, or where it has migrated from.
func isReady(s *scope, report *vmpb.ReportStateRequest) bool {
	if report.GetState() == vmpb.ReportStateRequest_STATE_STOPPING {
		return false
	}
	if report.GetGuest() != nil {
		return report.GetGuest().GetReady()
	}
	migration := s.vm.Status.Migration
	arrived := migration != nil && migration.Phase == v1alpha1.MigrationSucceeded && migration.TargetPodName == s.active.Name
	return len(serviceLabels(s.active)) > 0 || arrived && meta.IsStatusConditionTrue(s.vm.Status.Conditions, v1alpha1.ConditionGuestReady)
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
	if !hasClients(o.active) {
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
