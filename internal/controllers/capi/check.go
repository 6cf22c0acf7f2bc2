package capi

import (
	"context"
	"math/rand/v2"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/capi/marks"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
)

const (
	// checkEvery is how often the driver is asked about a VM that is well as far as anybody
	// knows. That is rare, since there are many.
	checkEvery = 10 * time.Minute
	// checkSoon is how often about one that was lost, and at most about any.
	checkSoon = time.Minute
	// checkJitter is the share by which the time may be longer.
	checkJitter = 0.1
)

// check is what is remembered of the questions whether a VM still exists. To lose it delays the
// next one. The zero value was not begun.
type check struct {
	begun bool
	// due is when the driver is asked again. It is not asked twice within checkSoon.
	due, last time.Time
	// asking tells that it was asked, and has not answered yet.
	asking bool
	// healthy tells that the node was well when the driver was last asked, or since.
	healthy bool
}

// checkInstance finds out whether a VM that was there still is. It is asked about every
// now and then, and at once when its node is not well any more. Nothing waits for the answer:
// what Cluster API was told once is not taken back.
func (c *Controller) checkInstance(ctx context.Context, s *scope) flow.Result {
	l := s.check()
	if left := l.left(s); left > 0 && !l.asking {
		s.wakeWithin(left)
		return flow.Continue()
	}
	askable, err := c.collectForCheck(ctx, s)
	switch {
	case err != nil:
		return flow.Fail(err)
	case !askable:
		l.again(s, checkEvery)
		return flow.Continue()
	case !l.asking:
		c.Engine.Forget(s.key()) // or it would say again what it said before
		l.asking, l.last, l.healthy = true, s.now, s.owner.Healthy()
	}
	c.seen(s, l, c.Engine.Ensure(s.request()))
	return flow.Continue()
}

// collectForCheck collects what the driver gets, and reports whether it can be asked. That
// something is missing is no fault of the VM's.
func (c *Controller) collectForCheck(ctx context.Context, s *scope) (bool, error) {
	missed, err := c.collect(ctx, s)
	return missed == missing{}, err
}

// seen draws the conclusions from the driver's answer. One that failed says nothing about the
// VM.
func (c *Controller) seen(s *scope, l *check, answer instance.Answer) {
	next := checkEvery
	switch answer.State {
	case instance.Underway:
		return // its end brings a pass
	case instance.Exists:
		marks.Found(s.machine, s.objects.Class)
		if s.notReadyFor(infrav1.ReasonInstanceLost) {
			s.provisioned()
		}
	case instance.Lost:
		if !marks.FoundWithOther(s.machine, s.objects.Class) { // or the driver may look in the wrong place
			s.lost()
			next = checkSoon
		}
	default:
		if !s.owner.Healthy() || s.notReadyFor(infrav1.ReasonInstanceLost) {
			next = checkSoon
		}
	}
	l.again(s, next)
}

// check returns what is remembered of the questions. The first one of a process comes at any
// time, so that those about all VMs do not come at once.
func (s *scope) check() *check {
	l := &s.memory.check
	if l.begun {
		return l
	}
	l.begun = true
	switch {
	case !marks.Established(s.stored): // the driver has just said that it is there
		l.again(s, checkEvery)
	case s.notReadyFor(infrav1.ReasonInstanceLost):
		l.due = s.now.Add(rand.N(checkSoon))
	default:
		l.due = s.now.Add(rand.N(checkEvery))
	}
	return l
}

// left is the time until the driver is to be asked; not positive if that is now.
func (l *check) left(s *scope) time.Duration {
	if l.healthy = l.healthy || s.owner.Healthy(); l.urgent(s) {
		return min(l.due.Sub(s.now), l.last.Add(checkSoon).Sub(s.now))
	}
	return l.due.Sub(s.now)
}

// urgent reports whether the node was well, and is not any more.
func (l *check) urgent(s *scope) bool { return l.healthy && !s.owner.Healthy() }

// again has the driver asked after that time, or a little later.
func (l *check) again(s *scope, after time.Duration) {
	after = wait.Jitter(after, checkJitter)
	l.asking, l.due = false, s.now.Add(after)
	s.wakeWithin(after)
}
