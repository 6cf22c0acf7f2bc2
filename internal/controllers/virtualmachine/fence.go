package virtualmachine

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podstate"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
)

// fencing starts VMs elsewhere whose hosts users have fenced.
type fencing struct {
	*cluster
	leader *leadership
}

// Reasons of the condition Fenced.
const (
	reasonFenced      = "Fenced"
	reasonMalformed   = "Malformed"
	reasonOtherPod    = "OtherPod"
	reasonOtherHost   = "OtherHost"
	reasonHostAnswers = "HostAnswers"
	reasonPodEnded    = "PodEnded"
	// reasonFullLeases and reasonTerminating are others.
)

// fenceFacts are the facts by which the annotation of a user who declares a host fenced is judged.
type fenceFacts struct {
	vm *v1alpha1.VirtualMachine
	// pod is the authoritative one; nil if there is none.
	pod *corev1.Pod
	// hasLease reports whether its hypervisor has a run lease open.
	hasLease bool
}

// judgeFence returns the reason and the message of the condition Fenced. The VM may be started elsewhere only if the
// reason is reasonFenced.
func judgeFence(f fenceFacts) (reason, message string) {
	value := f.vm.Annotations[v1alpha1.AnnotationFence]
	pod, node, _ := strings.Cut(value, "/")
	switch {
	case pod == "" || node == "" || strings.Contains(node, "/"):
		return reasonMalformed, fmt.Sprintf("%q is not the name of a pod, a slash and the name of its node.", value)
	case !f.vm.DeletionTimestamp.IsZero():
		return reasonTerminating, "The virtual machine is being deleted: it starts nowhere."
	case pod != f.vm.Status.ActivePodName:
		return reasonOtherPod, fmt.Sprintf("Pod %s is not the hypervisor of this virtual machine, which is %q.", pod, f.vm.Status.ActivePodName)
	case f.vm.Status.Lease != nil:
		return reasonFullLeases, "The lease of the hypervisor expires by itself; then the virtual machine starts on another host."
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

// fence accepts or refuses the annotation of a user who declares the host of the VM fenced. A refused annotation is
// removed immediately, so that it does not take effect when the host becomes unreachable later. An accepted one is
// removed once another Pod is reserved.
func (f *fencing) fence(ctx context.Context, s *scope) flow.Result {
	if _, given := s.vm.Annotations[v1alpha1.AnnotationFence]; !given {
		return flow.Continue()
	}
	key := client.ObjectKeyFromObject(s.vm)
	facts := fenceFacts{vm: s.vm, pod: s.active, hasLease: f.hypervisors.HasLease(key, s.vm.Status.ActivePodName)}
	reason, message := judgeFence(facts)
	if reason == reasonFenced {
		if early := f.leader.settling(); early > 0 { // it may be about to open its run lease
			f.queue.add(key, early)
			return flow.Continue()
		}
		live := &corev1.Pod{}
		if err := f.live.Get(ctx, client.ObjectKeyFromObject(s.active), live); err != nil || live.UID != s.active.UID {
			return flow.Fail(fmt.Errorf("reading pod %s: %w", s.active.Name, orStale(err)))
		}
		facts.pod = live
		reason, message = judgeFence(facts)
	}
	if reason == reasonFenced {
		s.fenced = message
		return flow.Continue()
	}
	if err := f.remove(ctx, s); err != nil {
		return flow.Fail(err)
	}
	s.fence = fenceCondition(metav1.ConditionFalse, reason, message)
	f.events.Event(s.vm, corev1.EventTypeWarning, "FenceRefused", s.fence.Message)
	return flow.Continue()
}

func fenceCondition(status metav1.ConditionStatus, reason, message string) *metav1.Condition {
	return &metav1.Condition{Type: v1alpha1.ConditionFenced, Status: status, Reason: reason, Message: podstate.Truncate(message)}
}

func (f *fencing) remove(ctx context.Context, s *scope) error {
	before := s.vm.DeepCopy()
	delete(s.vm.Annotations, v1alpha1.AnnotationFence)
	return f.patch(ctx, s.vm, before)
}

// finish sets the condition and removes the annotation that fence accepted, once another Pod is reserved.
func (f *fencing) finish(ctx context.Context, s *scope) flow.Result {
	if s.fenced == "" {
		return flow.Continue()
	}
	s.fence = fenceCondition(metav1.ConditionTrue, reasonFenced, s.fenced)
	f.events.Event(s.vm, corev1.EventTypeWarning, reasonFenced, s.fence.Message)
	return flow.Fail(f.remove(ctx, s))
}
