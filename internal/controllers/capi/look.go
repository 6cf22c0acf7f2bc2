package capi

import (
	"context"
	"math/rand/v2"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/instance"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
)

const (
	// lookEvery is how often the driver is asked about a VM that is well as far as anybody
	// knows. That is rare, since there are many.
	lookEvery = 10 * time.Minute
	// lookSoon is how often about one that was lost, and at most about any.
	lookSoon = time.Minute
	// lookJitter is the share by which the time may be longer.
	lookJitter = 0.1
)

// look is what is remembered of the questions about one VM. To lose it delays the next one.
type look struct {
	of types.UID
	// due is when the driver is asked again. It is not asked twice within lookSoon.
	due, last time.Time
	// asking tells that it was asked, and has not answered yet.
	asking bool
	// healthy tells that the node was well when the driver was last asked, or since.
	healthy bool
}

// lookAfterInstance finds out whether a VM that was there still is. It is asked about every
// now and then, and at once when its node is not well any more. Nothing waits for the answer:
// what Cluster API was told once is not taken back.
func (c *Controller) lookAfterInstance(ctx context.Context, s *scope) flow.Result {
	l := c.lookOf(s)
	if left := l.left(s); left > 0 && !l.asking {
		s.wakeWithin(left)
		return flow.Continue()
	}
	askable, err := c.collectForLook(ctx, s)
	switch {
	case err != nil:
		return flow.Fail(err)
	case !askable:
		l.again(s, lookEvery)
		return flow.Continue()
	case !l.asking:
		c.Engine.Forget(s.key()) // or it would say again what it said before
		l.asking, l.last, l.healthy = true, s.now, s.owner.Healthy()
	}
	c.seen(s, l, c.Engine.Ensure(s.request()))
	return flow.Continue()
}

// collectForLook collects what the driver gets, and reports whether it can be asked. That
// something is missing is no fault of the VM's.
func (c *Controller) collectForLook(ctx context.Context, s *scope) (bool, error) {
	lacking, err := c.collect(ctx, s)
	return lacking == lack{}, err
}

// seen draws the conclusions from the driver's answer. One that failed says nothing about the
// VM.
func (c *Controller) seen(s *scope, l *look, answer instance.Answer) {
	next := lookEvery
	switch answer.State {
	case instance.Underway:
		return // its end brings a pass
	case instance.Exists:
		s.foundAsAskedFor()
		if s.notReadyFor(infrav1.ReasonInstanceLost) {
			s.provisioned()
		}
	case instance.Lost:
		if !s.askedAnew() { // or the driver may look in the wrong place
			s.lost()
			next = lookSoon
		}
	default:
		if !s.owner.Healthy() || s.notReadyFor(infrav1.ReasonInstanceLost) {
			next = lookSoon
		}
	}
	l.again(s, next)
}

// lookOf is what is remembered of the questions about the VM. The first one of a process comes
// at any time, so that those about all VMs do not come at once.
func (c *Controller) lookOf(s *scope) *look {
	if known, ok := c.looks.Load(s.key()); ok && known.(*look).of == s.machine.UID {
		return known.(*look)
	}
	l := &look{of: s.machine.UID}
	switch {
	case !established(s.stored): // the driver has just said that it is there
		l.again(s, lookEvery)
	case s.notReadyFor(infrav1.ReasonInstanceLost):
		l.due = s.now.Add(rand.N(lookSoon))
	default:
		l.due = s.now.Add(rand.N(lookEvery))
	}
	c.looks.Store(s.key(), l)
	return l
}

// left is the time until the driver is to be asked; not positive if that is now.
func (l *look) left(s *scope) time.Duration {
	if l.healthy = l.healthy || s.owner.Healthy(); l.urgent(s) {
		return min(l.due.Sub(s.now), l.last.Add(lookSoon).Sub(s.now))
	}
	return l.due.Sub(s.now)
}

// urgent reports whether the node was well, and is not any more.
func (l *look) urgent(s *scope) bool { return l.healthy && !s.owner.Healthy() }

// again has the driver asked after that time, or a little later.
func (l *look) again(s *scope, after time.Duration) {
	after = wait.Jitter(after, lookJitter)
	l.asking, l.due = false, s.now.Add(after)
	s.wakeWithin(after)
}
