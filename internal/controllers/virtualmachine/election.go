package virtualmachine

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podspec"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podstate"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
)

// election chooses the hypervisor of a VM whose authority was lost.
type election struct {
	*cluster
	leader  *leadership
	leases  *leases
	volumes *volumes
}

// elect makes an existing hypervisor authoritative if the authority was lost, for example by a restore from a backup.
// If there are several hypervisors, it first deletes all but one. Any choice is safe, because only the process that
// holds the lock of the disk can run the VM.
func (e *election) elect(ctx context.Context, s *scope) flow.Result {
	candidates := podstate.OldestFirst(s.pods)
	if s.vm.Status.ActivePodName != "" {
		s.memory.lease.lost = time.Time{}
		return flow.Continue()
	}
	if wait := e.leases.awaitUnknown(s); wait > 0 {
		s.cause = causef(v1alpha1.ReasonLeaseExpiring, "The status of the virtual machine was lost; waiting until all leases that hypervisors may still hold have expired.")
		return flow.Wait(wait, "unknown leases have not expired")
	}
	if len(candidates) == 0 {
		return flow.Continue()
	}
	if podspec.Served(s.vm) {
		return e.deleteCandidates(ctx, s, candidates)
	}
	if slices.ContainsFunc(candidates, podspec.IsTarget) {
		unknown, err := e.volumes.unknownDisks(ctx, s, candidates)
		if err != nil {
			return flow.Fail(err)
		}
		if unknown != nil {
			return s.blocked(unknown) // the disk of the target may be an incomplete copy
		}
	}
	if len(candidates) == 1 {
		if err := e.registry.Elect(ctx, s.vm, candidates[0]); err != nil {
			return flow.Fail(err)
		}
		s.active = candidates[0]
		return flow.Continue()
	}
	keep, sure := e.choose(client.ObjectKeyFromObject(s.vm), candidates)
	if early := e.leader.settling(); !sure && early > 0 {
		return flow.Wait(early, "hypervisors may still open their run leases")
	}
	if _, err := e.confirm(ctx, s); err != nil {
		return flow.Fail(err)
	}
	others := slices.DeleteFunc(candidates, func(pod *corev1.Pod) bool { return pod == keep })
	if err := e.deletePods(ctx, others); err != nil {
		return flow.Fail(err)
	}
	return flow.Wait(goneCheck, "the other hypervisors are terminating")
}

// deleteCandidates deletes the hypervisors of a VM whose disks are served. The tokens with which they attached the
// disks were lost with the status.
func (e *election) deleteCandidates(ctx context.Context, s *scope, pods []*corev1.Pod) flow.Result {
	if _, err := e.confirm(ctx, s); err != nil {
		return flow.Fail(err)
	}
	if err := e.deletePods(ctx, pods); err != nil {
		return flow.Fail(err)
	}
	return flow.Wait(goneCheck, "the hypervisors are terminating")
}

// choose returns which of several hypervisors to keep: the only one with an open run lease, or else the oldest one.
// sure is true in the first case.
func (e *election) choose(vm client.ObjectKey, candidates []*corev1.Pod) (keep *corev1.Pod, sure bool) {
	leases := 0
	for _, pod := range candidates {
		if e.hypervisors.HasLease(vm, pod.Name) {
			keep, leases = pod, leases+1
		}
	}
	if leases == 1 {
		return keep, true
	}
	return candidates[0], false
}
