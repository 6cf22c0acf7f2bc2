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
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/conditions"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podspec"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podstate"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
	"github.com/millwright-dev/millwright/internal/vm/lease"
)

// leaseMemory is what is remembered of a VM's lease. Without it the VM waits longer.
type leaseMemory struct {
	watch lease.Watch
	// holder is who has the lease, with its number of transitions. Who asked for a lease that was suspected was heard before.
	holder sighting
	// lost is since when this process knows that the VM has Pods, and no authority.
	lost time.Time
}

// sighting is what this process knows, and since when.
type sighting struct {
	what  string
	since time.Time
}

// of returns since when something is known, which is now if something else was.
func (s *sighting) of(what string, now time.Time) time.Time {
	if s.what != what {
		*s = sighting{what, now}
	}
	return s.since
}

// instant is a time on this process's clock. Times of it have a monotonic part.
func (c *Controller) instant(at time.Time) lease.Instant { return at.Sub(c.startedAt) }

// watchLease bars the lease of a holder that is silent or gone, and finds out when another one may have it.
func (c *Controller) watchLease(ctx context.Context, p *pass) flow.Result {
	if p.vm.Status.Lease == nil || p.vm.Status.ActiveRunID == "" { // none, or nobody got it
		p.free = true
		return flow.Continue()
	}
	step, after := p.memory.lease.watch.Next(c.leaseFacts(p))
	switch step {
	case lease.Suspect:
		return c.bar(ctx, p, lease.Suspected)
	case lease.Revoke:
		return c.bar(ctx, p, lease.Revoked)
	case lease.HandOn:
		p.free = true
	case lease.Stay:
		c.enqueue(client.ObjectKeyFromObject(p.vm), after+time.Millisecond)
	}
	return flow.Continue()
}

// leaseFacts reads the clock, since the VM may be newer than the beginning of the pass.
func (c *Controller) leaseFacts(p *pass) lease.Facts {
	now := c.Clock.Now()
	heard := p.memory.lease.holder.of(fmt.Sprintf("%s/%s/%d", p.vm.Status.ActivePodName, p.vm.Status.ActiveRunID, p.vm.Status.Lease.Transitions), now)
	if last := c.hypervisors.Heard(client.ObjectKeyFromObject(p.vm)); last.After(heard) {
		heard = last
	}
	return lease.Facts{
		Record: authority.RecordOf(p.vm.Status.Lease), Gone: !podstate.Alive(p.active), Heard: c.instant(heard), Now: c.instant(now),
	}
}

// bar stores that no lease is granted any more, and looks again after the time that it takes to expire.
func (c *Controller) bar(ctx context.Context, p *pass, state lease.State) flow.Result {
	if err := c.registry.ChangeLease(ctx, p.vm, state); err != nil {
		return flow.Fail(err)
	}
	_, after := p.memory.lease.watch.Next(c.leaseFacts(p))
	c.enqueue(client.ObjectKeyFromObject(p.vm), after+time.Millisecond)
	if state == lease.Suspected {
		c.Events.Eventf(p.vm, corev1.EventTypeWarning, "LeaseSuspected",
			"The hypervisor in pod %s has not renewed its lease; another one is started in %v unless it does", p.vm.Status.ActivePodName, after)
	}
	return flow.Continue()
}

// overdue reports whether the VM is started elsewhere though the Pod of its hypervisor seems to live: that has not
// renewed its lease, and does not run the guest any more.
func (c *Controller) overdue(p *pass) bool {
	return p.free && p.vm.Status.Lease != nil && p.vm.Status.Lease.State != v1alpha1.LeaseOpen
}

// awaitLease waits until no hypervisor can have a lease.
func (c *Controller) awaitLease(_ context.Context, p *pass) flow.Result {
	if p.free {
		return flow.Continue()
	}
	return p.blocked(conditions.Causef(v1alpha1.ReasonLeaseExpiring, "%s", conditions.LeaseMessage(p.vm)))
}

func needsLease(pod *corev1.Pod) bool {
	duration, err := podspec.LeaseOf(pod)
	return err != nil || duration > 0
}

// awaitUnknownLease waits until no hypervisor can have a lease about which nothing is stored: the status was lost.
func (c *Controller) awaitUnknownLease(p *pass) time.Duration {
	if p.memory.lease.lost.IsZero() {
		if !slices.ContainsFunc(p.pods, needsLease) {
			return 0
		}
		p.memory.lease.lost = c.Clock.Now()
	}
	return lease.Wait(lease.MaxDuration) - c.Clock.Now().Sub(p.memory.lease.lost)
}
