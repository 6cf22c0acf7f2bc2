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

// leases finds out when a VM's lease has expired.
type leases struct {
	*cluster
	leader *leadership
}

// leaseMemory is what is remembered of a VM's lease. If it is lost, the VM waits longer.
type leaseMemory struct {
	watch lease.Watch
	// holder identifies the holder of the lease and the number of its transitions. A holder that renews a suspected lease
	// causes a transition, so it was heard before.
	holder sighting
	// lost is since when this process knows that the VM has Pods but no authority.
	lost time.Time
}

// instant converts a time of this process's clock, which has a monotonic part.
func (l *leases) instant(at time.Time) lease.Instant { return at.Sub(l.leader.startedAt) }

// watch closes the lease of a holder that is silent or gone, and finds out when another hypervisor may get it.
func (l *leases) watch(ctx context.Context, s *scope) flow.Result {
	if s.vm.Status.Lease == nil || s.vm.Status.ActiveRunID == "" { // no lease, or no process got it
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

// facts returns the facts about a lease. It reads the clock, because the VM may be newer than the beginning of the pass.
func (l *leases) facts(s *scope) lease.Facts {
	now := l.clock.Now()
	heard := s.memory.lease.holder.of(fmt.Sprintf("%s/%s/%d", s.vm.Status.ActivePodName, s.vm.Status.ActiveRunID, s.vm.Status.Lease.Transitions), now)
	if last := l.hypervisors.Heard(client.ObjectKeyFromObject(s.vm)); last.After(heard) {
		heard = last
	}
	return lease.Facts{
		Record: authority.RecordOf(s.vm.Status.Lease), Gone: !podstate.Alive(s.active), Heard: l.instant(heard), Now: l.instant(now),
	}
}

// close stores that the lease is no longer renewed, and requests a pass for the time when it has expired.
func (l *leases) close(ctx context.Context, s *scope, state lease.State) flow.Result {
	if err := l.registry.ChangeLease(ctx, s.vm, state); err != nil {
		return flow.Fail(err)
	}
	_, after := s.memory.lease.watch.Next(l.facts(s))
	l.queue.add(client.ObjectKeyFromObject(s.vm), after+time.Millisecond)
	if state == lease.Suspected {
		l.events.Eventf(s.vm, corev1.EventTypeWarning, "LeaseSuspected",
			"The hypervisor in pod %s has not renewed its lease; another one is started in %v unless it does", s.vm.Status.ActivePodName, after)
	}
	return flow.Continue()
}

// await waits until no hypervisor can have a lease any longer.
func (l *leases) await(_ context.Context, s *scope) flow.Result {
	if s.free {
		return flow.Continue()
	}
	return s.blocked(causef(v1alpha1.ReasonLeaseExpiring, "%s", leaseMessage(s.vm)))
}

// needsLease reports whether the hypervisor in a Pod runs only while it has a lease.
func needsLease(pod *corev1.Pod) bool {
	duration, err := podspec.LeaseOf(pod)
	return err != nil || duration > 0
}

// awaitUnknown returns how long hypervisors of a VM whose status was lost may still have a lease.
func (l *leases) awaitUnknown(s *scope) time.Duration {
	if s.memory.lease.lost.IsZero() {
		if !slices.ContainsFunc(s.pods, needsLease) {
			return 0
		}
		s.memory.lease.lost = l.clock.Now()
	}
	return lease.Wait(lease.MaxDuration) - l.clock.Now().Sub(s.memory.lease.lost)
}
