package virtualmachine

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilrand "k8s.io/apimachinery/pkg/util/rand"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
)

// observePods finds the Pods of this very VM, and the authoritative one among them. The
// API server is asked before a Pod is taken for gone.
func (c *Controller) observePods(ctx context.Context, p *pass) flow.Result {
	list := &corev1.PodList{}
	err := c.Client.List(ctx, list, client.InNamespace(p.vm.Namespace), client.MatchingFields{indexOwner: string(p.vm.UID)})
	if err != nil {
		return flow.Fail(fmt.Errorf("listing pods of %s: %w", p.vm.Name, err))
	}
	p.pods = ours(p.vm, list)
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
	case owns(p.vm, pod):
		p.pods = append(p.pods, pod)
		p.accept(pod)
	default:
		p.taken = true
	}
	return flow.Continue()
}

// accept takes a Pod that has the authority's name for the authoritative one, unless it
// is another of that name.
func (p *pass) accept(pod *corev1.Pod) {
	if recorded := p.vm.Status.ActivePodUID; recorded == "" || recorded == pod.UID {
		p.active = pod
	}
}

// patience is how long hypervisors have, after the start of this process, to come back
// to their run leases before one of several is chosen without knowing which one runs.
const patience = 30 * time.Second

// elect gives a VM whose authority was lost (by a restore, say) back to the hypervisor
// that exists. While there are several, nobody gets it, and all but one must go. Which
// one stays is no question of safety, as only the holder of the disk's lock can run.
func (c *Controller) elect(ctx context.Context, p *pass) flow.Result {
	candidates := living(p.pods)
	if p.vm.Status.ActivePodName != "" || len(candidates) == 0 {
		return flow.Continue()
	}
	if len(candidates) == 1 {
		err := c.swapAuthority(ctx, p.vm, v1alpha1.VirtualMachineAuthority{
			ActivePodName: candidates[0].Name, ActivePodUID: candidates[0].UID, VolumeClaimName: claimOf(candidates[0]),
		})
		if err != nil {
			return flow.Fail(err)
		}
		p.active = candidates[0]
		return flow.Continue()
	}
	keep, sure := c.keeper(client.ObjectKeyFromObject(p.vm), candidates)
	if early := patience - p.now.Sub(c.began); !sure && early > 0 {
		return flow.Wait(early, "which hypervisor asks for a run lease")
	}
	if _, err := c.confirm(ctx, p); err != nil {
		return flow.Fail(err)
	}
	for _, pod := range candidates {
		if pod == keep {
			continue
		}
		if err := c.delete(ctx, []*corev1.Pod{pod}); err != nil {
			return flow.Fail(err)
		}
	}
	return flow.Wait(goneCheck, "the end of the other hypervisors")
}

// keeper is the one of several hypervisors to keep: the only one that has a run lease
// open, or else the oldest, which then is a guess.
func (c *Controller) keeper(vm client.ObjectKey, candidates []*corev1.Pod) (keep *corev1.Pod, sure bool) {
	streaming := 0
	for _, pod := range candidates {
		if c.streams.open(vm, pod.Name) {
			keep, streaming = pod, streaming+1
		}
	}
	if streaming == 1 {
		return keep, true
	}
	return candidates[0], false
}

// recordPod writes down the UID of the Pod that the reserved name has become.
func (c *Controller) recordPod(ctx context.Context, p *pass) flow.Result {
	if p.active == nil || p.vm.Status.ActivePodUID != "" {
		return flow.Continue()
	}
	next := p.vm.Status.VirtualMachineAuthority
	next.ActivePodUID = p.active.UID
	return flow.Fail(c.swapAuthority(ctx, p.vm, next))
}

// reserve names the next Pod, before it exists, and so takes the VM away from the one
// that ended.
func (c *Controller) reserve(ctx context.Context, p *pass) flow.Result {
	has := p.vm.Status.VirtualMachineAuthority
	if has.ActivePodName != "" && has.ActivePodUID == "" && !p.taken {
		return flow.Continue() // reserved already, and not yet made
	}
	next := v1alpha1.VirtualMachineAuthority{ActivePodName: podName(p.vm.Name), VolumeClaimName: p.claim}
	if err := c.swapAuthority(ctx, p.vm, next); err != nil {
		return flow.Fail(err)
	}
	p.active = nil
	key := client.ObjectKeyFromObject(p.vm)
	c.attempts.begin(key, p.vm.Generation, p.now)
	c.streams.wake(key)
	return flow.Continue()
}

// podName is a name that no Pod of the VM had before.
func podName(vm string) string { return vm + "-" + utilrand.String(8) }
