package hypervisor_test

import (
	"context"
	"slices"
	"syscall"
	"testing"
	"time"

	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// ampleLease does not expire while the test, which is the controller, or a hypervisor is blocked for some seconds, as
// on a busy machine.
const ampleLease = 20 * time.Second

// newLeasedHousehold returns a household of a VM with leases.
func newLeasedHousehold(t *testing.T) *household {
	t.Helper()
	h := newHousehold(t)
	h.leases(ampleLease)
	return h
}

// leases makes members that need leases, and the controller grants them.
func (h *household) leases(duration time.Duration) {
	h.lease = duration
	h.controller.Change(func(a *authority) { a.lease = duration })
}

// wantReleased checks whether a Pod's hypervisor reported that its guest has terminated.
func (h *household) wantReleased(pod string) {
	h.t.Helper()
	if !slices.ContainsFunc(h.controller.Released(), func(us *vmpb.HypervisorID) bool { return us.GetPodName() == pod }) {
		h.t.Errorf("%s has not released its lease", pod)
	}
}

// TestRealMigrationWithLeases moves a guest twice, and lets it run for longer than a lease there.
func TestRealMigrationWithLeases(t *testing.T) {
	tier.All(t)
	t.Parallel()
	h := newLeasedHousehold(t)
	here := h.source()
	console := here.counts()
	for last, pod := range []string{"web-2", "web-3"} {
		console.runsOn()
		here, console = h.follows(here, console, pod)
		for arrived := time.Now(); last == 1 && time.Since(arrived) < ampleLease+time.Second; {
			console.numbers(1)
		}
	}
	h.wantReleased("web-1")
	here.kill()
	here.wantAll(console.last)
}

// The authority alone does not let a guest run: the controller withholds the target's lease, and then grants it.
func TestRealTargetWaitsForItsLease(t *testing.T) {
	tier.All(t)
	t.Parallel()
	h := newLeasedHousehold(t)
	source := h.source()
	here := source.counts()
	here.runsOn()
	target := h.target("web-2")
	h.names(func(int) *member { return target })
	h.controller.Change(func(a *authority) {
		a.migrate = true
		a.after = func(*vmpb.HypervisorID) error {
			h.controller.Change(func(a *authority) { a.lease = 0 })
			return nil
		}
	})
	here.toTheEnd()
	source.ends(vmpb.EndTerminated)
	asked := len(h.controller.Runs())
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	must(t, h.controller.awaitRuns(ctx, asked+1)) // it asks again, and has no guest
	if phases := h.controller.Phases("web-2"); len(phases) > 0 {
		t.Fatalf("it has reported %v without a lease", phases)
	}
	h.controller.Change(func(a *authority) { a.lease, a.after = h.lease, nil })
	there := here.goesOnIn(target)
	there.runsOn()
	target.kill()
	target.wantAll(there.last)
}

// The target is killed after the commit: the guest keeps running at the source, with a new lease that outlasts the one before.
// TestRealServedDeath kills the source.
func TestRealLeasedDeathAfterTheCommit(t *testing.T) {
	tier.All(t)
	t.Parallel()
	h := newLeasedHousehold(t)
	h.departure.Switchover = time.Second
	asked, release := h.holdSwitchovers()
	source := h.source()
	here := source.counts()
	here.numbers(10)
	target := h.moves("web-2")
	for us := <-asked; us.GetPodName() != "web-2"; us = <-asked { // the source asks soon, and before a slow target
	}
	target.kill()
	release()
	h.awaitReturn(source)
	for back := time.Now(); time.Since(back) < ampleLease; {
		here.numbers(1)
	}
	h.goesOn(source, here)
}

// The controller is unavailable for longer than a lease during the migration: the guest of the source terminates, as
// usual.
func TestRealLeaseExpiresInAMigration(t *testing.T) {
	tier.All(t)
	t.Parallel()
	t.Run("in the copy", func(t *testing.T) {
		t.Parallel()
		h := newLeasedHousehold(t)
		h.bandwidth = 128 << 10
		source := h.source()
		here := source.counts()
		here.numbers(10)
		target := h.moves("web-2")
		h.awaitCopy()
		h.line.Cut(true)
		source.ends(vmpb.EndLeaseExpired)
		target.ends(vmpb.EndNotArrived)
		here.toTheEnd()
		source.wantAll(here.last)
	})
	// The guest has left: it continues when the controller is back.
	t.Run("after the commit", func(t *testing.T) {
		t.Parallel()
		h := newLeasedHousehold(t)
		h.arrival.Switchover = waitTimeout // the target asks on while the lease expires
		asked, release := h.holdSwitchovers()
		source := h.source()
		here := source.counts()
		here.numbers(10)
		target := h.moves("web-2")
		<-asked
		h.line.Cut(true)
		source.ends(vmpb.EndLeaseExpired)
		target.lives()
		release()
		h.line.Cut(false)
		here.toTheEnd()
		there := here.goesOnIn(target)
		there.runsOn()
		target.kill()
		target.wantAll(there.last)
	})
	// No hypervisor can have the guest any more.
	t.Run("while the source asks for the authority", func(t *testing.T) {
		t.Parallel()
		h := newLeasedHousehold(t)
		h.departure.Switchover = time.Second
		asked, _ := h.holdSwitchovers()
		source := h.source()
		source.counts().numbers(10)
		target := h.moves("web-2")
		<-asked
		target.kill()
		for us := <-asked; us.GetPodName() != "web-1"; us = <-asked {
		}
		source.ends(vmpb.EndLeaseExpired)
	})
}

// A source that hangs during the copy is killed by its watchdog, and its guest with it.
func TestRealSourceHangsInTheCopy(t *testing.T) {
	tier.All(t)
	t.Parallel()
	h := newLeasedHousehold(t)
	h.bandwidth = 128 << 10
	source := h.source()
	here := source.counts()
	here.numbers(10)
	target := h.moves("web-2")
	h.awaitCopy()
	must(t, source.process.Signal(syscall.SIGSTOP))
	begun := time.Now()
	<-source.process.Ended()                                         // nothing else ends it
	if took := time.Since(begun); took > ampleLease+10*time.Second { // for a slow machine
		t.Errorf("it was killed after %v", took)
	}
	target.ends(vmpb.EndNotArrived)
	if holder := h.controller.Holder(); holder.GetPodName() != "web-1" {
		t.Errorf("%v is authoritative", holder)
	}
}

// While no lease is granted, a target with the authority terminates when the controller says so, or when it is asked
// to terminate and a lease would have expired.
func TestRealTargetIsTerminatedWithoutALease(t *testing.T) {
	tier.All(t)
	t.Parallel()
	for name, test := range map[string]struct {
		end  func(h *household, target *member)
		want string
	}{
		"by the controller": {func(h *household, _ *member) {
			h.controller.Change(func(a *authority) { a.holder = &vmpb.HypervisorID{PodName: "web-3"} })
		}, vmpb.EndTerminated},
		"by a signal": {func(_ *household, target *member) { target.term() }, vmpb.EndStopped},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newLeasedHousehold(t)
			source := h.source()
			source.counts().numbers(10)
			target := h.target("web-2")
			h.names(func(int) *member { return target })
			switched := make(chan struct{})
			h.controller.Change(func(a *authority) {
				a.migrate = true
				a.after = func(*vmpb.HypervisorID) error {
					h.controller.Change(func(a *authority) { a.lease, a.after = 0, nil })
					close(switched)
					return nil
				}
			})
			<-switched
			source.ends(vmpb.EndTerminated)
			test.end(h, target)
			target.ends(test.want)
		})
	}
}

// awaitRuns waits until so many streams were opened; the error is the context's.
func (c *fakeController) awaitRuns(ctx context.Context, count int) error {
	for {
		c.mu.Lock()
		opened, changed := len(c.runs), c.changed
		c.mu.Unlock()
		if opened >= count {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
