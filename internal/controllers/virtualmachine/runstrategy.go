package virtualmachine

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podspec"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podstate"
	"github.com/millwright-dev/millwright/internal/reconcile/edge"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// stayStopped stops the pass if spec.runStrategy does not start the guest. Its disks are then not served.
func (c *Controller) stayStopped(ctx context.Context, s *scope) flow.Result {
	if !s.mayStart() {
		return flow.Continue()
	}
	why := staysStopped(s.vm, s.active)
	if why == nil {
		return flow.Continue()
	}
	s.cause = why
	if result := c.diskServers.deleteAll(ctx, s); result.StopsPass() {
		return result
	}
	return s.blocked(why)
}

// staysStopped returns why spec.runStrategy does not start a guest that does not run; nil if it does.
func staysStopped(vm *v1alpha1.VirtualMachine, pod *corev1.Pod) *cause {
	if vm.Spec.RunStrategy == v1alpha1.RunHalted {
		return causef(v1alpha1.ReasonHalted, "spec.runStrategy is Halted.")
	}
	if vm.Status.ActivePodUID == "" || podspec.Restarts(vm) {
		return nil
	}
	switch vm.Spec.RunStrategy {
	case v1alpha1.RunRerunOnFailure:
		if vm.Status.ShutDownPodUID == vm.Status.ActivePodUID || guestShutDown(pod) {
			return causef(v1alpha1.ReasonCompleted, "The guest shut itself down, and spec.runStrategy is RerunOnFailure.")
		}
	case v1alpha1.RunOnce:
		if vm.Status.ActiveRunID != "" { // otherwise the hypervisor has never run
			return causef(v1alpha1.ReasonCompleted, "The guest has ended, and spec.runStrategy is Once.%s", ended(pod))
		}
	}
	return nil
}

// guestShutDown reports whether the guest of a Pod has shut itself down.
func guestShutDown(pod *corev1.Pod) bool {
	return pod != nil && podstate.Finished(pod) && podstate.EndOf(pod).Reason == vmpb.EndGuestShutdown
}

// ended returns a sentence with how the hypervisor in a Pod terminated, after a space; empty if that is unknown.
func ended(pod *corev1.Pod) string {
	if pod == nil || !podstate.Finished(pod) {
		return ""
	}
	return " Its hypervisor terminated: " + podstate.EndOf(pod).Message
}

// shutDown deletes the Pod of a guest that must shut down.
func (p *hypervisorPods) shutDown(ctx context.Context, s *scope) flow.Result {
	if !s.active.DeletionTimestamp.IsZero() {
		return flow.Stop("the guest is shutting down")
	}
	live, err := p.confirm(ctx, s)
	if err != nil {
		return flow.Fail(err)
	}
	if !podspec.ShutsDown(live) {
		return flow.Fail(edge.ErrStale)
	}
	p.events.Eventf(s.vm, corev1.EventTypeNormal, eventShuttingDown,
		"Shutting down the guest in pod %s, and terminating it if that takes more than %s", s.active.Name, podspec.ShutdownTime(s.vm))
	if err := p.deletePods(ctx, []*corev1.Pod{s.active}); err != nil {
		return flow.Fail(err)
	}
	return flow.Stop("the guest is shutting down")
}
