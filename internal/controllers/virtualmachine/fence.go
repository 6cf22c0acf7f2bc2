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

// fencing starts VMs on another host after a user has declared their host fenced.
type fencing struct {
	*cluster
	leader *leadership
}

// Reasons of the condition Fenced.
const (
	reasonFenced        = "Fenced"
	reasonMalformed     = "Malformed"
	reasonOtherPod      = "OtherPod"
	reasonOtherHost     = "OtherHost"
	reasonHostReachable = "HostAnswers"
	reasonPodEnded      = "PodEnded"
	// reasonFullLeases and reasonTerminating are reasons of this condition, too.
)

// fenceFacts are the facts on which the controller accepts or refuses a user's declaration that a host is fenced.
type fenceFacts struct {
	vm *v1alpha1.VirtualMachine
	// pod is the authoritative Pod; nil if it does not exist.
	pod *corev1.Pod
	// hasLease reports whether the hypervisor has an open run lease.
	hasLease bool
}

// evaluateFence returns the reason and the message of the condition Fenced. The VM may start on another host only if
// the reason is reasonFenced.
func evaluateFence(f fenceFacts) (reason, message string) {
	value := f.vm.Annotations[v1alpha1.AnnotationFence]
	pod, node, _ := strings.Cut(value, "/")
	switch {
	case pod == "" || node == "" || strings.Contains(node, "/"):
		return reasonMalformed, fmt.Sprintf("The value %q is invalid; use POD/NODE.", value)
	case !f.vm.DeletionTimestamp.IsZero():
		return reasonTerminating, "The virtual machine is being deleted and will not start on another host."
	case pod != f.vm.Status.ActivePodName:
		return reasonOtherPod, fmt.Sprintf("Pod %s is not the hypervisor of this virtual machine; the hypervisor is pod %q.", pod, f.vm.Status.ActivePodName)
	case f.vm.Status.Lease != nil:
		return reasonFullLeases, "Fencing is not needed: the virtual machine starts on another host when the lease of its hypervisor has expired."
	case !podstate.Alive(f.pod):
		return reasonPodEnded, fmt.Sprintf("Fencing is not needed: pod %s has terminated, and another hypervisor is being started.", pod)
	case node != f.pod.Spec.NodeName:
		return reasonOtherHost, fmt.Sprintf("Pod %s is not on node %s; it is on node %q.", pod, node, f.pod.Spec.NodeName)
	case f.hasLease:
		return reasonHostReachable, fmt.Sprintf("The hypervisor in pod %s is connected to the VM controller, so node %s is not fenced.", pod, node)
	case !podstate.HostUnreachable(f.pod):
		return reasonHostReachable, fmt.Sprintf("Node %s is not known to be unreachable; set the annotation again when the condition Ready has the reason HostUnreachable.", node)
	}
	return reasonFenced, fmt.Sprintf("A user declared node %s fenced; pod %s may no longer run the virtual machine.", node, pod)
}

// fence accepts or refuses a user's declaration that the host of the VM is fenced. It removes a refused annotation
// immediately, so that it does not take effect when the host becomes unreachable later. An accepted annotation is
// removed once another Pod is reserved.
func (f *fencing) fence(ctx context.Context, s *scope) flow.Result {
	if _, given := s.vm.Annotations[v1alpha1.AnnotationFence]; !given {
		return flow.Continue()
	}
	key := client.ObjectKeyFromObject(s.vm)
	facts := fenceFacts{vm: s.vm, pod: s.active, hasLease: f.hypervisors.HasLease(key, s.vm.Status.ActivePodName)}
	reason, message := evaluateFence(facts)
	if reason == reasonFenced {
		if early := f.leader.settling(); early > 0 { // the hypervisor may be about to open its run lease
			f.queue.add(key, early)
			return flow.Continue()
		}
		live := &corev1.Pod{}
		if err := f.live.Get(ctx, client.ObjectKeyFromObject(s.active), live); err != nil || live.UID != s.active.UID {
			return flow.Fail(fmt.Errorf("reading pod %s: %w", s.active.Name, orStale(err)))
		}
		facts.pod = live
		reason, message = evaluateFence(facts)
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

// finish sets the condition Fenced and removes the annotation that fence accepted. It runs after another Pod is
// reserved.
func (f *fencing) finish(ctx context.Context, s *scope) flow.Result {
	if s.fenced == "" {
		return flow.Continue()
	}
	s.fence = fenceCondition(metav1.ConditionTrue, reasonFenced, s.fenced)
	f.events.Event(s.vm, corev1.EventTypeWarning, reasonFenced, s.fence.Message)
	return flow.Fail(f.remove(ctx, s))
}
