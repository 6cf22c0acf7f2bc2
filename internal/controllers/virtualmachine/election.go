package virtualmachine

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilrand "k8s.io/apimachinery/pkg/util/rand"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/conditions"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podspec"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podstate"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
)

// observePods finds the VM's Pods, and the authoritative one among them. If the cache does
// not have that, the API server is asked.
func (c *Controller) observePods(ctx context.Context, p *pass) flow.Result {
	list := &corev1.PodList{}
	err := c.Client.List(ctx, list, client.InNamespace(p.vm.Namespace), client.MatchingFields{indexOwner: string(p.vm.UID)})
	if err != nil {
		return flow.Fail(fmt.Errorf("listing pods of %s: %w", p.vm.Name, err))
	}
	p.pods, p.servers = podspec.HypervisorsAndServers(ownedPods(p.vm, list))
	authority := p.vm.Status.VirtualMachineAuthority
	if authority.ActivePodName == "" {
		return flow.Continue()
	}
	for _, pod := range p.pods {
		if pod.Name == authority.ActivePodName {
			p.accept(pod)
		}
	}
	if p.active != nil {
		return flow.Continue()
	}
	pod := &corev1.Pod{}
	err = c.APIReader.Get(ctx, client.ObjectKey{Namespace: p.vm.Namespace, Name: authority.ActivePodName}, pod)
	switch {
	case apierrors.IsNotFound(err):
	case err != nil:
		return flow.Fail(fmt.Errorf("reading pod %s: %w", authority.ActivePodName, err))
	case podstate.Owns(p.vm, pod):
		p.pods = append(p.pods, pod)
		p.accept(pod)
	default:
		p.nameTaken = true
	}
	return flow.Continue()
}

// accept takes a Pod with the authority's name as the authoritative one, unless its UID
// differs.
func (p *pass) accept(pod *corev1.Pod) {
	if recorded := p.vm.Status.ActivePodUID; recorded == "" || recorded == pod.UID {
		p.active = pod
	}
}

// electionDelay is how long hypervisors have, after this process became the leader, to open their
// run leases before one of several without a lease is elected, or one counts as fenced.
const electionDelay = 30 * time.Second

// elect gives a VM whose authority was lost, for example by a restore from a backup, to its
// hypervisor. If there are several, all but one are deleted first. Any choice is safe: only
// the process that holds the disk's lock can run.
func (c *Controller) elect(ctx context.Context, p *pass) flow.Result {
	candidates := podstate.OldestFirst(p.pods)
	if p.vm.Status.ActivePodName != "" {
		p.memory.lease.lost = time.Time{}
		return flow.Continue()
	}
	if wait := c.awaitUnknownLease(p); wait > 0 {
		p.cause = conditions.Causef(v1alpha1.ReasonLeaseExpiring, "The status of the virtual machine was lost: a hypervisor may have a lease, until that has expired.")
		return flow.Wait(wait, "the end of unknown leases")
	}
	if len(candidates) == 0 {
		return flow.Continue()
	}
	if podspec.Served(p.vm) {
		return c.giveUp(ctx, p, candidates)
	}
	if slices.ContainsFunc(candidates, podspec.IsTarget) {
		unknown, err := c.unknownDisks(ctx, p, candidates)
		if err != nil {
			return flow.Fail(err)
		}
		if unknown != nil {
			return p.blocked(unknown) // the target's may lack what is only being copied
		}
	}
	if len(candidates) == 1 {
		if err := c.registry.Elect(ctx, p.vm, candidates[0]); err != nil {
			return flow.Fail(err)
		}
		p.active = candidates[0]
		return flow.Continue()
	}
	keep, sure := c.keeper(client.ObjectKeyFromObject(p.vm), candidates)
	if early := c.unheard(); !sure && early > 0 {
		return flow.Wait(early, "which hypervisor asks for a run lease")
	}
	if _, err := c.confirm(ctx, p); err != nil {
		return flow.Fail(err)
	}
	others := slices.DeleteFunc(candidates, func(pod *corev1.Pod) bool { return pod == keep })
	if err := c.delete(ctx, others); err != nil {
		return flow.Fail(err)
	}
	return flow.Wait(goneCheck, "the end of the other hypervisors")
}

// giveUp ends the hypervisors of a VM whose status was lost: nobody knows with which tokens they have the disks.
func (c *Controller) giveUp(ctx context.Context, p *pass, pods []*corev1.Pod) flow.Result {
	if _, err := c.confirm(ctx, p); err != nil {
		return flow.Fail(err)
	}
	if err := c.delete(ctx, pods); err != nil {
		return flow.Fail(err)
	}
	return flow.Wait(goneCheck, "the end of the hypervisors")
}

// keeper returns which of several hypervisors to keep: the only one with an open run lease
// (sure), or else the oldest.
func (c *Controller) keeper(vm client.ObjectKey, candidates []*corev1.Pod) (keep *corev1.Pod, sure bool) {
	leases := 0
	for _, pod := range candidates {
		if c.hypervisors.HasLease(vm, pod.Name) {
			keep, leases = pod, leases+1
		}
	}
	if leases == 1 {
		return keep, true
	}
	return candidates[0], false
}

// recordPod stores the UID of the Pod that was created under the reserved name.
func (c *Controller) recordPod(ctx context.Context, p *pass) flow.Result {
	if p.active == nil || p.vm.Status.ActivePodUID != "" {
		return flow.Continue()
	}
	next := p.vm.Status.VirtualMachineAuthority
	next.ActivePodUID = p.active.UID
	return flow.Fail(c.registry.Swap(ctx, p.vm, next))
}

// reserve stores the name of the next Pod before it exists. The hypervisor of the last Pod
// loses the VM then.
func (c *Controller) reserve(ctx context.Context, p *pass) flow.Result {
	has := p.vm.Status.VirtualMachineAuthority
	if has.ActivePodName != "" && has.ActivePodUID == "" && !p.nameTaken {
		return flow.Continue() // reserved already, and not yet created
	}
	// No Pod of the VM had this name before.
	next := v1alpha1.VirtualMachineAuthority{ActivePodName: p.vm.Name + "-" + utilrand.String(8), VolumeClaimName: p.claim}
	if err := c.registry.Swap(ctx, p.vm, next); err != nil {
		return flow.Fail(err)
	}
	p.active = nil
	p.memory.backoff.startedAt = p.now
	c.hypervisors.Recheck(client.ObjectKeyFromObject(p.vm))
	return flow.Continue()
}
