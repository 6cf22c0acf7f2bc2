package virtualmachine

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/authority"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/migration"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podspec"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podstate"
	"github.com/millwright-dev/millwright/internal/reconcile/apierror"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
)

// hypervisorPods maintains one hypervisor Pod for each VM.
type hypervisorPods struct {
	*cluster
	// oneMachine reports whether all hosts run on one machine.
	oneMachine bool
}

// observe finds the Pods of the VM and the authoritative one among them. It reads the authoritative Pod from the API
// server if the cache does not have it.
func (p *hypervisorPods) observe(ctx context.Context, s *scope) flow.Result {
	list := &corev1.PodList{}
	err := p.client.List(ctx, list, client.InNamespace(s.vm.Namespace), client.MatchingFields{indexOwner: string(s.vm.UID)})
	if err != nil {
		return flow.Fail(fmt.Errorf("listing pods of %s: %w", s.vm.Name, err))
	}
	created := ownedPods(s.vm, list)
	s.forged = slices.DeleteFunc(slices.Clone(created), func(pod *corev1.Pod) bool { return p.signer.Created(s.vm, pod) })
	created = slices.DeleteFunc(created, func(pod *corev1.Pod) bool { return slices.Contains(s.forged, pod) })
	s.pods, s.servers = podspec.HypervisorsAndServers(created)
	authority := s.vm.Status.VirtualMachineAuthority
	if authority.ActivePodName == "" {
		return flow.Continue()
	}
	for _, pod := range s.pods {
		if pod.Name == authority.ActivePodName {
			s.accept(pod)
		}
	}
	if s.active != nil {
		return flow.Continue()
	}
	pod := &corev1.Pod{}
	err = p.live.Get(ctx, client.ObjectKey{Namespace: s.vm.Namespace, Name: authority.ActivePodName}, pod)
	switch {
	case apierrors.IsNotFound(err):
	case err != nil:
		return flow.Fail(fmt.Errorf("reading pod %s: %w", authority.ActivePodName, err))
	case p.signer.Created(s.vm, pod):
		s.pods = append(s.pods, pod)
		s.accept(pod)
	default:
		s.nameTaken = true
	}
	return flow.Continue()
}

// record stores the UID of the Pod that was created under the reserved name.
func (p *hypervisorPods) record(ctx context.Context, s *scope) flow.Result {
	if s.active == nil || s.vm.Status.ActivePodUID != "" {
		return flow.Continue()
	}
	next := s.vm.Status.VirtualMachineAuthority
	next.ActivePodUID = s.active.UID
	return flow.Fail(p.registry.Swap(ctx, s.vm, next))
}

// removeOthers deletes the hypervisor Pods that are neither authoritative nor migration targets, and forged Pods. Their
// hypervisors also terminate on their own, because they get no run lease.
func (p *hypervisorPods) removeOthers(ctx context.Context, s *scope) flow.Result {
	others := slices.DeleteFunc(slices.Clone(s.pods), func(pod *corev1.Pod) bool {
		return pod == s.active || !pod.DeletionTimestamp.IsZero() || migration.IsTarget(&s.vm.Status, pod.Name)
	})
	others = append(others, slices.DeleteFunc(slices.Clone(s.forged), func(pod *corev1.Pod) bool { return !pod.DeletionTimestamp.IsZero() })...)
	if len(others) == 0 {
		return flow.Continue()
	}
	if _, err := p.confirm(ctx, s); err != nil {
		return flow.Fail(err)
	}
	return flow.Fail(p.deletePods(ctx, others))
}

// keepRunning stops the pass while the authoritative hypervisor is alive. A changed spec takes effect with the next
// hypervisor. A Pod that cannot be scheduled is replaced immediately if the spec changed, and a Pod that cannot start
// is replaced immediately if the spec or the image changed, because the change may fix the problem.
func (p *hypervisorPods) keepRunning(ctx context.Context, s *scope) flow.Result {
	if s.mayStart() {
		return flow.Continue()
	}
	if podspec.ShutsDown(s.vm) {
		return p.shutDown(ctx, s)
	}
	_, unschedulable := podstate.Unschedulable(s.active)
	if unschedulable && podspec.Outdated(s.vm, s.active) && s.active.DeletionTimestamp.IsZero() {
		return p.deleteUnschedulable(ctx, s.active)
	}
	if podstate.CannotStart(s.active) && podspec.Changed(s.vm, s.active, p.settings()) {
		return flow.Fail(p.deletePods(ctx, []*corev1.Pod{s.active}))
	}
	return flow.Stop("the hypervisor is alive")
}

// deleteUnschedulable deletes a Pod for which no host has capacity. It does not delete a Pod that has been scheduled
// in the meantime: such a Pod has another resource version.
func (p *hypervisorPods) deleteUnschedulable(ctx context.Context, pod *corev1.Pod) flow.Result {
	err := p.client.Delete(ctx, pod, client.Preconditions{UID: &pod.UID, ResourceVersion: &pod.ResourceVersion})
	if apierror.IgnoreGone(err) != nil {
		return flow.Fail(fmt.Errorf("deleting pod %s: %w", pod.Name, err))
	}
	return flow.Stop("the pod is being replaced because the spec changed")
}

// deleteAll deletes the hypervisor Pods of a VM that is being deleted, and waits until they are gone. A guest may take
// until authority.ShutdownDeadline to shut down.
func (p *hypervisorPods) deleteAll(ctx context.Context, s *scope) flow.Result {
	pods := s.pods
	if len(pods) == 0 {
		own, err := p.ownPods(ctx, s.vm)
		if err != nil {
			return flow.Fail(err)
		}
		pods, s.servers = podspec.HypervisorsAndServers(own)
	}
	if len(pods) == 0 {
		return flow.Continue()
	}
	p.announceDeletion(s)
	if err := p.deletePods(ctx, pods); err != nil {
		return flow.Fail(err)
	}
	if left := authority.ShutdownDeadline(s.vm).Sub(s.now); left > 0 {
		return flow.Wait(min(left, goneCheck), "the guest is shutting down")
	}
	return flow.Wait(goneCheck, "the hypervisor is terminating")
}

// announceDeletion sends an event when the guest of a VM that is being deleted is asked to shut down, and one with how
// it ended.
func (p *hypervisorPods) announceDeletion(s *scope) {
	pod := s.active
	switch {
	case pod == nil:
	case podstate.Finished(pod):
		end := podstate.EndOf(pod)
		if s.memory.events.News(eventShutDown, string(pod.UID)+end.Reason) {
			p.events.Eventf(s.vm, corev1.EventTypeNormal, eventShutDown, "The hypervisor in pod %s terminated: %s", pod.Name, end.Message)
		}
	case pod.DeletionTimestamp.IsZero() && s.vm.Status.Phase == v1alpha1.PhaseRunning && s.vm.Spec.Mode != v1alpha1.ModePause:
		p.events.Eventf(s.vm, corev1.EventTypeNormal, eventShuttingDown,
			"The virtual machine is being deleted; shutting down the guest in pod %s, and terminating it if that takes more than %s",
			pod.Name, podspec.ShutdownTime(s.vm))
	}
}

// Reasons of the events of a deletion.
const (
	eventShuttingDown = "ShuttingDown"
	eventShutDown     = "ShutDown"
)
