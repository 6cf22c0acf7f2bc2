package virtualmachine

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/disks"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podstate"
	"github.com/millwright-dev/millwright/internal/reconcile/events"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
)

// scope is the state of one reconcile pass, which its steps share.
type scope struct {
	vm     *v1alpha1.VirtualMachine // a copy that includes what this pass has written
	now    time.Time                // when the pass began
	memory *memory

	// Set by ObservePods. active is the authoritative Pod, running or terminated; nil if it does not exist. Reserve
	// clears it, and CreatePod sets it again. nameTaken reports whether a Pod of another object, or a forged one, has
	// the reserved name.
	pods      []*corev1.Pod // hypervisors
	servers   []*corev1.Pod // disk servers
	forged    []*corev1.Pod // Pods that name the VM as their owner, but that no VM controller created
	active    *corev1.Pod
	nameTaken bool

	unlabeled error                           // why Services may select the wrong Pod. Set by LabelPods
	addresses []string                        // checked or assigned addresses. Set by AssignAddresses
	claim     string                          // claim of the root disk; empty if the disk is ephemeral. Set by EnsureClaim
	claims    []*corev1.PersistentVolumeClaim // claims of all disks. Set by EnsureClaim and EnsureDataClaims
	cause     *cause                          // why there is no Pod. Set by the step that stopped the pass
	free      bool                            // no hypervisor can still hold the last lease. Set by WatchLease
	served    servedDisks                     // Set by ServeDisks and AwaitDisks, if the disks are served

	// noGrowth is why a volume cannot grow; nil if all volumes can. Set by GrowDisks.
	noGrowth *cause

	// fenced is the message of the condition Fenced if the host is fenced. The VM then starts on another host
	// although the Pod of its hypervisor seems to be alive. Empty if the host is not fenced. Set by Fence.
	fenced string
	// fence is the condition Fenced; nil if it did not change in this pass.
	fence *metav1.Condition
}

// servedDisks is what a pass knows about the disk server of a VM.
type servedDisks struct {
	pod      *corev1.Pod   // nil if there is none
	process  *disks.Server // the process in that Pod; nil until it serves
	state    disks.State   // what it has done, according to its last response
	revoking bool          // the next hypervisor waits until the server has revoked all earlier tokens
	refused  *cause        // why the Pod was not created; nil if it was not refused
}

// memory is what the controller remembers about a VM between passes. If it is lost, some steps take longer.
type memory struct {
	backoff backoff
	events  events.Last
	lease   leaseMemory
	served  servedMemory
	// target identifies the last migration by its target and start time. The time at which this process first saw it
	// limits the migration even if the wall clock is set back.
	target firstSeen
}

// firstSeen is a value, and when this process first saw it.
type firstSeen struct {
	value string
	at    time.Time
}

// timeOf returns when this process first saw a value, which is now unless the last call had the same value.
func (f *firstSeen) timeOf(value string, now time.Time) time.Time {
	if f.value != value {
		*f = firstSeen{value, now}
	}
	return f.at
}

// cause is why a VM has no hypervisor.
type cause struct {
	// Reason of the condition Ready.
	Reason string
	// Message is for users and names the field or object to change.
	Message string
}

// causef returns a cause.
func causef(reason, format string, args ...any) *cause {
	return &cause{Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// blocked stops the pass for a cause that the condition Ready reports. The next pass comes with an event of the VM or
// of an object that the cause names.
func (s *scope) blocked(by *cause) flow.Result {
	s.cause = by
	return flow.Stop(by.Reason)
}

// missing is like blocked, for a cause that names an object that the controller does not watch. It requests another
// pass.
func (s *scope) missing(by *cause) flow.Result {
	s.cause = by
	return flow.Wait(userDataCheck, by.Reason)
}

// accept makes a Pod that has the authoritative name the active one, unless its UID differs from the recorded one.
func (s *scope) accept(pod *corev1.Pod) {
	if recorded := s.vm.Status.ActivePodUID; recorded == "" || recorded == pod.UID {
		s.active = pod
	}
}

// overdue reports whether the VM may start on another host although the Pod of its hypervisor seems to be alive. That
// hypervisor has not renewed its lease and no longer runs the guest.
func (s *scope) overdue() bool {
	return s.free && s.vm.Status.Lease != nil && s.vm.Status.Lease.State != v1alpha1.LeaseOpen
}

// mayStart reports whether no hypervisor runs the guest or may still run it.
func (s *scope) mayStart() bool { return !podstate.Alive(s.active) || s.overdue() || s.fenced != "" }

// holder returns the Pod of the hypervisor that may have the disks attached; nil if there is none.
func (s *scope) holder() *corev1.Pod {
	if !podstate.Alive(s.active) || s.overdue() {
		return nil
	}
	return s.active
}

// targetPod returns the Pod of the last migration's target; nil if this pass does not know it.
func (s *scope) targetPod() *corev1.Pod {
	if s.vm.Status.Migration == nil {
		return nil
	}
	for _, pod := range s.pods {
		if pod.Name == s.vm.Status.Migration.TargetPodName {
			return pod
		}
	}
	return nil
}
