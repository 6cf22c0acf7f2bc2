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
	// checkInterval is the time between two checks of a healthy VM. It is long because there may be many VMs.
	checkInterval = 10 * time.Minute
	// checkRetryInterval is the time between two checks of a lost VM. It is also the minimum time between any two
	// checks of the same VM.
	checkRetryInterval = time.Minute
	// checkJitter is the maximum factor by which these times are extended at random.
	checkJitter = 0.1
)

// check is what the controller remembers about the checks whether a VM still exists. If it is lost, the next check is
// delayed.
type check struct {
	// due is when the driver is called next. last is when it was last called.
	due, last time.Time
	// calling reports whether the driver was called and has not responded yet.
	calling bool
	// healthy reports whether the node has been healthy at any time since the last call of the driver.
	healthy bool
}

// checkInstance checks whether a VM still exists: at intervals, and immediately when its node is no longer healthy.
// No other step waits for the result, because Cluster API's contract does not allow a VM to become unprovisioned.
func (c *Controller) checkInstance(ctx context.Context, s *scope) flow.Result {
	l := s.check()
	if remaining := l.remaining(s); remaining > 0 && !l.calling {
		s.requeueAfter(remaining)
		return flow.Continue()
	}
	missing, err := c.readInputs(ctx, s)
	switch {
	case err != nil:
		return flow.Fail(err)
	case missing != nil: // the VM may exist
		l.schedule(s, checkInterval)
		return flow.Continue()
	case !l.calling:
		c.Engine.Forget(s.key()) // otherwise it would return the previous result
		l.calling, l.last, l.healthy = true, s.now, s.owner.Healthy()
	}
	s.checked(l, c.Engine.Ensure(s.request()))
	return flow.Continue()
}

// checked updates the status after a check. A failed call does not change whether the VM is reported as lost.
func (s *scope) checked(l *check, result instance.EnsureResult) {
	next := checkInterval
	switch r := result.(type) {
	case instance.Pending:
		return // the engine triggers a reconcile
	case instance.Exists:
		marks.Found(s.machine, s.inputs.Class)
		s.locate(r.Location)
		s.refresh(r.Instance)
		if s.awaitsAddress() {
			next = checkRetryInterval
		}
		if s.notReadyFor(infrav1.ReasonInstanceLost) {
			s.provisioned()
		}
	case instance.Lost:
		if !marks.FoundWithOther(s.machine, s.inputs.Class) { // otherwise the driver may look in the wrong place
			s.lost()
			next = checkRetryInterval
		}
	case instance.Failed, instance.Located:
		if !s.owner.Healthy() || s.notReadyFor(infrav1.ReasonInstanceLost) {
			next = checkRetryInterval
		}
	}
	l.schedule(s, next)
}

// check returns the state of the checks. The first check of a process is at a random time, so that not all VMs are
// checked at the same time.
func (s *scope) check() *check {
	l := &s.memory.check
	switch {
	case !l.due.IsZero():
	case !marks.Established(s.stored) && s.awaitsAddress():
		l.schedule(s, checkRetryInterval)
	case !marks.Established(s.stored): // the driver has just found it
		l.schedule(s, checkInterval)
	case s.notReadyFor(infrav1.ReasonInstanceLost):
		l.due = s.now.Add(rand.N(checkRetryInterval))
	default:
		l.due = s.now.Add(rand.N(checkInterval))
	}
	return l
}

// refresh updates the addresses and the failure domain of a VM. Many providers give a VM one address when it starts
// and another one later. Values that the driver does not return are kept.
func (s *scope) refresh(found instance.Instance) {
	s.machine.Status.FailureDomain = cmp.Or(found.FailureDomain, s.machine.Status.FailureDomain)
	if current := addressesOf(found.Addresses); len(current) > 0 {
		s.machine.Status.Addresses = current
	}
}

// awaitsAddress reports whether a new VM has no IP address yet. It returns false after checkInterval, because some
// drivers never return an address.
func (s *scope) awaitsAddress() bool {
	known := slices.ContainsFunc(s.machine.Status.Addresses, func(a infrav1.MachineAddress) bool {
		return a.Type == corev1.NodeInternalIP || a.Type == corev1.NodeExternalIP
	})
	return !known && s.now.Sub(s.machine.CreationTimestamp.Time) < checkInterval
}

// remaining returns the time until the next check. If it is not positive, the check is due.
func (l *check) remaining(s *scope) time.Duration {
	l.healthy = l.healthy || s.owner.Healthy()
	if l.healthy && !s.owner.Healthy() {
		return min(l.due.Sub(s.now), l.last.Add(checkRetryInterval).Sub(s.now))
	}
	return l.due.Sub(s.now)
}

// schedule schedules the next check.
func (l *check) schedule(s *scope, after time.Duration) {
	after = wait.Jitter(after, checkJitter)
	l.calling, l.due = false, s.now.Add(after)
	s.requeueAfter(after)
}
