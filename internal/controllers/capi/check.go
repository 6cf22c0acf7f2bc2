package capi

import (
	"cmp"
	"context"
	"math/rand/v2"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/capi/marks"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
)

const (
	// checkEvery is the time between two checks of a VM that is well. It is long, since there are
	// many.
	checkEvery = 10 * time.Minute
	// checkSoon is the time between two checks of a VM that was lost, and at least between any
	// two checks of one VM.
	checkSoon = time.Minute
	// checkJitter is the share by which these times may be longer.
	checkJitter = 0.1
)

// check is what is remembered of the checks whether a VM still exists. Losing it delays the next one.
type check struct {
	// due is when the driver is called next, last when it was called last.
	due, last time.Time
	// asking reports that the driver was called and has not answered yet.
	asking bool
	// healthy reports that the node was healthy when the driver was last called, or since.
	healthy bool
}

// checkInstance finds out whether a VM still exists: from time to time, and at once when its node is not
// healthy any more. Nothing waits for the answer: Cluster API's contract does not allow a VM to become
// unprovisioned.
func (c *Controller) checkInstance(ctx context.Context, s *scope) flow.Result {
	l := s.check()
	if left := l.left(s); left > 0 && !l.asking {
		s.wakeWithin(left)
		return flow.Continue()
	}
	missing, err := c.readInputs(ctx, s)
	switch {
	case err != nil:
		return flow.Fail(err)
	case missing != nil: // that says nothing about the VM
		l.again(s, checkEvery)
		return flow.Continue()
	case !l.asking:
		c.Engine.Forget(s.key()) // or it would return its former answer
		l.asking, l.last, l.healthy = true, s.now, s.owner.Healthy()
	}
	s.checked(l, c.Engine.Ensure(s.request()))
	return flow.Continue()
}

// checked updates the status after a check. A call that failed says nothing about the VM.
func (s *scope) checked(l *check, result instance.EnsureResult) {
	next := checkEvery
	switch r := result.(type) {
	case instance.Pending:
		return // the engine triggers a reconcile
	case instance.Exists:
		marks.Found(s.machine, s.inputs.Class)
		s.locate(r.Location)
		s.follow(r.Instance)
		if s.awaitsAddress() {
			next = checkSoon
		}
		if s.notReadyFor(infrav1.ReasonInstanceLost) {
			s.provisioned()
		}
	case instance.Lost:
		if !marks.FoundWithOther(s.machine, s.inputs.Class) { // or the driver may look in the wrong place
			s.lost()
			next = checkSoon
		}
	case instance.Failed, instance.Located:
		if !s.owner.Healthy() || s.notReadyFor(infrav1.ReasonInstanceLost) {
			next = checkSoon
		}
	}
	l.again(s, next)
}

// check returns what is remembered. The first check of a process comes at a random time, so that not all
// VMs are checked at once.
func (s *scope) check() *check {
	l := &s.memory.check
	switch {
	case !l.due.IsZero():
	case !marks.Established(s.stored) && s.awaitsAddress():
		l.again(s, checkSoon)
	case !marks.Established(s.stored): // the driver has just found it
		l.again(s, checkEvery)
	case s.notReadyFor(infrav1.ReasonInstanceLost):
		l.due = s.now.Add(rand.N(checkSoon))
	default:
		l.due = s.now.Add(rand.N(checkEvery))
	}
	return l
}

// follow follows the addresses of a VM, and its failure domain: many providers give it an address when it
// starts, and another one later. What a driver does not say stays as it is known.
func (s *scope) follow(found instance.Instance) {
	s.machine.Status.FailureDomain = cmp.Or(found.FailureDomain, s.machine.Status.FailureDomain)
	if current := addressesOf(found.Addresses); len(current) > 0 {
		s.machine.Status.Addresses = current
	}
}

// awaitsAddress reports that a new VM has no IP address yet. Drivers that never say one are not asked
// more often for that after a while.
func (s *scope) awaitsAddress() bool {
	known := slices.ContainsFunc(s.machine.Status.Addresses, func(a infrav1.MachineAddress) bool {
		return a.Type == corev1.NodeInternalIP || a.Type == corev1.NodeExternalIP
	})
	return !known && s.now.Sub(s.machine.CreationTimestamp.Time) < checkEvery
}

// left returns the time until the next check; not positive if that is now.
func (l *check) left(s *scope) time.Duration {
	l.healthy = l.healthy || s.owner.Healthy()
	if l.healthy && !s.owner.Healthy() {
		return min(l.due.Sub(s.now), l.last.Add(checkSoon).Sub(s.now))
	}
	return l.due.Sub(s.now)
}

// again schedules the next check.
func (l *check) again(s *scope, after time.Duration) {
	after = wait.Jitter(after, checkJitter)
	l.asking, l.due = false, s.now.Add(after)
	s.wakeWithin(after)
}
