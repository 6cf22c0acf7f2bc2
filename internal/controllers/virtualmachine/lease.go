package virtualmachine

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/authority"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podspec"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podstate"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
	"github.com/millwright-dev/millwright/internal/vm/lease"
)

// leases tracks when the lease of a VM has expired.
type leases struct {
	*cluster
	leader *leadership
}

// leaseMemory is what the controller remembers about the lease of a VM. If it is lost, the VM waits longer.
type leaseMemory struct {
	watch lease.Watch
	// holder is the Pod and run that hold the lease, with the number of transitions. The time at which this process
	// first saw it counts as a sign of life, because a holder that renews a suspected lease causes a transition.
	holder firstSeen
	// lost is when this process first saw that the VM has Pods but no authority.
	lost time.Time
}

// instant converts a time of this process's clock, which must have a monotonic reading.
func (l *leases) instant(at time.Time) lease.Instant { return at.Sub(l.leader.startedAt) }

// watch suspects the lease of a silent hypervisor, revokes that of a terminated one, and determines when another
// hypervisor may get the lease.
func (l *leases) watch(ctx context.Context, s *scope) flow.Result {
	if s.vm.Status.Lease == nil || s.vm.Status.ActiveRunID == "" { // there is no lease, or no process has held it
		s.free = true
		return flow.Continue()
	}
	step, after := s.memory.lease.watch.Next(l.facts(s))
	switch step {
	case lease.Suspect:
		return l.close(ctx, s, lease.Suspected)
	case lease.Revoke:
		return l.close(ctx, s, lease.Revoked)
	case lease.HandOn:
		s.free = true
	case lease.Stay:
		l.queue.add(client.ObjectKeyFromObject(s.vm), after+time.Millisecond)
	}
	return flow.Continue()
}

// facts returns the facts about a lease. It reads the clock, because the VM may have been written after the pass
// began.
func (l *leases) facts(s *scope) lease.Facts {
	now := l.clock.Now()
	heard := s.memory.lease.holder.timeOf(fmt.Sprintf("%s/%s/%d", s.vm.Status.ActivePodName, s.vm.Status.ActiveRunID, s.vm.Status.Lease.Transitions), now)
	if last := l.hypervisors.LastGrant(client.ObjectKeyFromObject(s.vm)); last.After(heard) {
		heard = last
	}
	return lease.Facts{
		Record: authority.RecordOf(s.vm.Status.Lease), Gone: !podstate.Alive(s.active), Heard: l.instant(heard), Now: l.instant(now),
	}
}

// close stores that the lease is suspected or revoked, and requests a pass for the time at which it expires.
func (l *leases) close(ctx context.Context, s *scope, state lease.State) flow.Result {
	if err := l.registry.ChangeLease(ctx, s.vm, state); err != nil {
		return flow.Fail(err)
	}
	_, after := s.memory.lease.watch.Next(l.facts(s))
	l.queue.add(client.ObjectKeyFromObject(s.vm), after+time.Millisecond)
	if state == lease.Suspected {
		l.events.Eventf(s.vm, corev1.EventTypeWarning, "LeaseSuspected",
			"The hypervisor in pod %s has not renewed its lease; another one starts in %v unless the lease is renewed", s.vm.Status.ActivePodName, after)
	}
	return flow.Continue()
}

// await waits until no hypervisor can hold a lease.
func (l *leases) await(_ context.Context, s *scope) flow.Result {
	if s.free {
		return flow.Continue()
	}
	return s.blocked(causef(v1alpha1.ReasonLeaseExpiring, "%s", leaseMessage(s.vm)))
}

// renewalsCheck is the interval of checks for a VM that waits for capacity, which changes of other VMs may free.
const renewalsCheck = 30 * time.Second

// awaitRenewals waits until the controller has capacity to renew the next lease of the VM. Without it, the leases of
// VMs that already run could not all be renewed in time, and their guests would be terminated together.
func (l *leases) awaitRenewals(ctx context.Context, s *scope) flow.Result {
	needed, ok, err := l.registry.ReserveRenewals(ctx, s.vm)
	if err != nil {
		return flow.Fail(err)
	}
	if !ok {
		s.cause = causef(v1alpha1.ReasonLeaseCapacity, "The leases of all virtual machines would need %.1f renewals per second, and the VM controller has capacity for %.1f; "+
			"increase its flag --vm-lease-renewals, use a longer leaseDurationSeconds, or delete virtual machines with full leases.", needed.Used, needed.Capacity)
		return flow.Wait(renewalsCheck, "no capacity for more lease renewals")
	}
	if needed.Added && needed.Low() {
		l.events.Eventf(s.vm, corev1.EventTypeWarning, "LeaseCapacityLow",
			"The leases of all virtual machines need %.1f of %.1f renewals per second; increase --vm-lease-renewals of the VM controller before more virtual machines start", needed.Used, needed.Capacity)
	}
	return flow.Continue()
}

// needsLease reports whether the hypervisor in a Pod runs only while it holds a lease.
func needsLease(pod *corev1.Pod) bool {
	duration, err := podspec.LeaseOf(pod)
	return err != nil || duration > 0
}

// awaitUnknown returns how long hypervisors may still hold leases that are unknown because the status was lost.
func (l *leases) awaitUnknown(s *scope) time.Duration {
	if s.memory.lease.lost.IsZero() {
		if !slices.ContainsFunc(s.pods, needsLease) {
			return 0
		}
		s.memory.lease.lost = l.clock.Now()
	}
	return lease.Wait(lease.MaxDuration) - l.clock.Now().Sub(s.memory.lease.lost)
}
