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
	vm     *v1alpha1.VirtualMachine // a copy, updated with what this pass writes
	now    time.Time                // when the pass began
	memory *memory

	// Set by ObservePods. active is the authoritative Pod, running or terminated; nil if there is
	// none. Reserve clears it, CreatePod sets it again. nameTaken reports whether a Pod of
	// another object has the reserved name.
	pods      []*corev1.Pod // of hypervisors
	servers   []*corev1.Pod // that serve the disks
	active    *corev1.Pod
	nameTaken bool

	addresses []string                        // checked or assigned. Set by AssignAddresses
	claim     string                          // of the root disk; empty if it is ephemeral. Set by EnsureClaim
	claims    []*corev1.PersistentVolumeClaim // of all disks. Set by EnsureClaim and EnsureDataClaims
	cause     *cause                          // why there is no Pod. Set by the step that ended the pass
	free      bool                            // no hypervisor can hold the last lease any longer. Set by WatchLease
	served    servedDisks                     // Set by ServeDisks and AwaitDisks, if a server has the disks

	// noGrowth is why a volume cannot grow; nil if all can. Set by GrowDisks.
	noGrowth *cause

	// fenced is the message that the host is fenced, so that the VM is started elsewhere although the Pod of its
	// hypervisor seems to be alive. Empty if it is not. Set by Fence.
	fenced string
	// fence is the condition Fenced; nil if it did not change in this pass.
	fence *metav1.Condition
}

// servedDisks is what a pass knows about the server of a VM's disks.
type servedDisks struct {
	pod      *corev1.Pod   // nil if there is none
	process  *disks.Server // in that Pod; nil until it serves
	asked    disks.State   // its last response
	revoking bool          // the next hypervisor waits until the process has revoked all earlier tokens
}

// memory is what is remembered of a VM between passes. Losing it costs only time.
type memory struct {
	backoff backoff
	events  events.Said
	lease   leaseMemory
	served  servedMemory
	// target is that of the last migration, and when it began. Without it, a clock that was set back delays the end of
	// the migration.
	target sighting
}

// sighting is a fact, and since when this process knows it.
type sighting struct {
	what  string
	since time.Time
}

// of returns since when a fact is known. A new fact is known since now.
func (s *sighting) of(what string, now time.Time) time.Time {
	if s.what != what {
		*s = sighting{what, now}
	}
	return s.since
}

// cause is why a VM has no hypervisor.
type cause struct {
	// Reason of the condition Ready.
	Reason string
	// Message names the field or object to change.
	Message string
}

// causef returns a cause.
func causef(reason, format string, args ...any) *cause {
	return &cause{Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// blocked ends the pass for a cause that the status shows. The next pass comes with an event
// of the VM, or of an object in the cause.
func (s *scope) blocked(by *cause) flow.Result {
	s.cause = by
	return flow.Stop(by.Reason)
}

// missing is blocked for an object that the controller does not watch.
func (s *scope) missing(by *cause) flow.Result {
	s.cause = by
	return flow.Wait(userDataCheck, by.Reason)
}

// accept takes a Pod with the authority's name as the authoritative one, unless its UID
// differs.
func (s *scope) accept(pod *corev1.Pod) {
	if recorded := s.vm.Status.ActivePodUID; recorded == "" || recorded == pod.UID {
		s.active = pod
	}
}

// overdue reports whether the VM is started elsewhere although the Pod of its hypervisor seems to be alive: that hypervisor
// has not renewed its lease, and no longer runs the guest.
func (s *scope) overdue() bool {
	return s.free && s.vm.Status.Lease != nil && s.vm.Status.Lease.State != v1alpha1.LeaseOpen
}

// holder returns the Pod of the hypervisor that may have the disks attached; nil if there is none.
func (s *scope) holder() *corev1.Pod {
	if !podstate.Alive(s.active) || s.overdue() {
		return nil
	}
	return s.active
}

// targetPod returns the Pod of the last migration's target; nil if it is not known.
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
