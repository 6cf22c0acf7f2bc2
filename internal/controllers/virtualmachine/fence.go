package virtualmachine

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/conditions"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podstate"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
)

// Reasons of the condition Fenced.
const (
	reasonFenced      = "Fenced"
	reasonMalformed   = "Malformed"
	reasonOtherPod    = "OtherPod"
	reasonOtherHost   = "OtherHost"
	reasonHostAnswers = "HostAnswers"
	reasonPodEnded    = "PodEnded"
	// conditions.ReasonFullLeases and conditions.ReasonTerminating are others.
)

// fenceFacts are what is known when a user says that a host is fenced.
type fenceFacts struct {
	vm *v1alpha1.VirtualMachine
	// pod is the authoritative one. Nil: there is none.
	pod *corev1.Pod
	// hasLease is whether its hypervisor has a run lease open.
	hasLease bool
}

// judgeFence returns whether the VM may be started elsewhere, as reason and message of the condition Fenced: only for
// reasonFenced.
func judgeFence(f fenceFacts) (reason, message string) {
	value := f.vm.Annotations[v1alpha1.AnnotationFence]
	pod, node, _ := strings.Cut(value, "/")
	switch {
	case pod == "" || node == "" || strings.Contains(node, "/"):
		return reasonMalformed, fmt.Sprintf("%q is not the name of a pod, a slash and the name of its node.", value)
	case !f.vm.DeletionTimestamp.IsZero():
		return conditions.ReasonTerminating, "The virtual machine is being deleted: it starts nowhere."
	case pod != f.vm.Status.ActivePodName:
		return reasonOtherPod, fmt.Sprintf("Pod %s is not the hypervisor of this virtual machine, which is %q.", pod, f.vm.Status.ActivePodName)
	case f.vm.Status.Lease != nil:
		return conditions.ReasonFullLeases, "The lease of the hypervisor expires by itself; then the virtual machine starts on another host."
	case !podstate.Alive(f.pod):
		return reasonPodEnded, fmt.Sprintf("Pod %s has ended: another hypervisor is started without that.", pod)
	case node != f.pod.Spec.NodeName:
		return reasonOtherHost, fmt.Sprintf("Pod %s is not on node %s but on %q.", pod, node, f.pod.Spec.NodeName)
	case f.hasLease:
		return reasonHostAnswers, fmt.Sprintf("The hypervisor in pod %s answers the VM controller, so node %s is not fenced.", pod, node)
	case !podstate.HostUnreachable(f.pod):
		return reasonHostAnswers, fmt.Sprintf("Node %s is not known to be unreachable. Set the annotation again when the condition Ready is HostUnreachable.", node)
	}
	return reasonFenced, fmt.Sprintf("A user said that node %s is fenced: pod %s lost the virtual machine.", node, pod)
}

// fence obeys or refuses a user who says that the host of the VM is fenced. What is refused is removed at once: it must
// not come true when the host does not answer one day. What is obeyed is removed once another Pod is reserved.
func (c *Controller) fence(ctx context.Context, p *pass) flow.Result {
	if _, given := p.vm.Annotations[v1alpha1.AnnotationFence]; !given {
		return flow.Continue()
	}
	key := client.ObjectKeyFromObject(p.vm)
	facts := fenceFacts{vm: p.vm, pod: p.active, hasLease: c.hypervisors.HasLease(key, p.vm.Status.ActivePodName)}
	reason, message := judgeFence(facts)
	if reason == reasonFenced {
		if early := c.unheard(); early > 0 { // it may be about to open its run lease
			c.enqueue(key, early)
			return flow.Continue()
		}
		live := &corev1.Pod{}
		if err := c.APIReader.Get(ctx, client.ObjectKeyFromObject(p.active), live); err != nil || live.UID != p.active.UID {
			return flow.Fail(fmt.Errorf("reading pod %s: %w", p.active.Name, orStale(err)))
		}
		facts.pod = live
		reason, message = judgeFence(facts)
	}
	if reason == reasonFenced {
		p.fenced = message
		return flow.Continue()
	}
	if err := c.removeFence(ctx, p); err != nil {
		return flow.Fail(err)
	}
	p.fence = fenceCondition(metav1.ConditionFalse, reason, message)
	c.Events.Event(p.vm, corev1.EventTypeWarning, "FenceRefused", p.fence.Message)
	return flow.Continue()
}

func fenceCondition(status metav1.ConditionStatus, reason, message string) *metav1.Condition {
	return &metav1.Condition{Type: v1alpha1.ConditionFenced, Status: status, Reason: reason, Message: podstate.Truncate(message)}
}

// orStale returns errStale for an object that is another one.
func orStale(err error) error {
	if client.IgnoreNotFound(err) == nil {
		return errStale
	}
	return err
}

func (c *Controller) removeFence(ctx context.Context, p *pass) error {
	before := p.vm.DeepCopy()
	delete(p.vm.Annotations, v1alpha1.AnnotationFence)
	return c.patch(ctx, p.vm, before)
}

// afterFence ends what fence began, once another Pod is reserved.
func (c *Controller) afterFence(ctx context.Context, p *pass) flow.Result {
	if p.fenced == "" {
		return flow.Continue()
	}
	p.fence = fenceCondition(metav1.ConditionTrue, reasonFenced, p.fenced)
	c.Events.Event(p.vm, corev1.EventTypeWarning, reasonFenced, p.fence.Message)
	return flow.Fail(c.removeFence(ctx, p))
}

// unheard returns for how long hypervisors that live may still be without a run lease, after this process
// became the leader.
func (c *Controller) unheard() time.Duration {
	since := c.startedAt
	if led := c.leadsSince.Load(); led != nil {
		since = *led
	}
	return electionDelay - c.Clock.Now().Sub(since)
}
