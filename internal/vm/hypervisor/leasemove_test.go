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

// ampleLease does not expire while the test (which is the controller) or a hypervisor is blocked for some seconds,
// as on a busy host.
const ampleLease = 20 * time.Second

// newLeasedCluster returns a testCluster of a VM with leases.
func newLeasedCluster(t *testing.T) *testCluster {
	t.Helper()
	h := newTestCluster(t)
	h.leases(ampleLease)
	return h
}

// leases creates members that require leases, and makes the controller grant them.
func (h *testCluster) leases(duration time.Duration) {
	h.lease = duration
	h.controller.Change(func(a *authority) { a.lease = duration })
}

// wantReleased checks whether the hypervisor of a Pod has reported that its guest has terminated.
func (h *testCluster) wantReleased(pod string) {
	h.t.Helper()
	if !slices.ContainsFunc(h.controller.Released(), func(us *vmpb.HypervisorID) bool { return us.GetPodName() == pod }) {
		h.t.Errorf("%s did not release its lease", pod)
	}
}

// TestMigration_WithLeases moves a guest twice and lets it run on the target for longer than a lease.
func TestMigration_WithLeases(t *testing.T) {
	tier.All(t)
	t.Parallel()
	h := newLeasedCluster(t)
	here := h.source()
	console := here.counts()
	for last, pod := range []string{"web-2", "web-3"} {
		console.keepsRunning()
		here, console = h.follows(here, console, pod)
		for arrived := time.Now(); last == 1 && time.Since(arrived) < ampleLease+time.Second; {
			console.numbers(1)
		}
	}
	h.wantReleased("web-1")
	here.kill()
	here.wantAll(console.last)
}

// The authority alone does not let a guest run. The controller first withholds the target's lease, and then grants
// it.
func TestMigration_TargetWaitsForLease(t *testing.T) {
	tier.All(t)
	t.Parallel()
	h := newLeasedCluster(t)
	source := h.source()
	here := source.counts()
	here.keepsRunning()
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
	source.wantEnd(vmpb.EndTerminated)
	asked := len(h.controller.Runs())
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	must(t, h.controller.awaitRuns(ctx, asked+1)) // the target asks again and does not have a guest
	if phases := h.controller.Phases("web-2"); len(phases) > 0 {
		t.Fatalf("the target reported %v without a lease", phases)
	}
	h.controller.Change(func(a *authority) { a.lease, a.after = h.lease, nil })
	onTarget := here.continuesOn(target)
	onTarget.keepsRunning()
	target.kill()
	target.wantAll(onTarget.last)
}

// The target is killed after the commit. The guest keeps running on the source, with a new lease that expires
// later than the previous one. In TestServedDisks_ProcessKilled, the source is killed.
func TestMigration_TargetKilledAfterCommitWithLease(t *testing.T) {
	tier.All(t)
	t.Parallel()
	h := newLeasedCluster(t)
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
	h.migratesAgain(source, here)
}

// The controller is unavailable for longer than a lease during the migration. As usual, the source terminates its
// guest.
func TestMigration_LeaseExpires(t *testing.T) {
	tier.All(t)
	t.Parallel()
	t.Run("during the copy", func(t *testing.T) {
		t.Parallel()
		h := newLeasedCluster(t)
		h.bandwidth = 128 << 10
		source := h.source()
		here := source.counts()
		here.numbers(10)
		target := h.moves("web-2")
		h.awaitCopy()
		h.line.Cut(true)
		source.wantEnd(vmpb.EndLeaseExpired)
		target.wantEnd(vmpb.EndNotArrived)
		here.toTheEnd()
		source.wantAll(here.last)
	})
	// The guest has left the source, so it continues when the controller is available again.
	t.Run("after the commit", func(t *testing.T) {
		t.Parallel()
		h := newLeasedCluster(t)
		h.arrival.Switchover = waitTimeout // the target keeps asking while the lease expires
		asked, release := h.holdSwitchovers()
		source := h.source()
		here := source.counts()
		here.numbers(10)
		target := h.moves("web-2")
		<-asked
		h.line.Cut(true)
		source.wantEnd(vmpb.EndLeaseExpired)
		target.wantAlive()
		release()
		h.line.Cut(false)
		here.toTheEnd()
		onTarget := here.continuesOn(target)
		onTarget.keepsRunning()
		target.kill()
		target.wantAll(onTarget.last)
	})
	// No other hypervisor can have the guest.
	t.Run("while the source asks for the authority", func(t *testing.T) {
		t.Parallel()
		h := newLeasedCluster(t)
		h.departure.Switchover = time.Second
		asked, _ := h.holdSwitchovers()
		source := h.source()
		source.counts().numbers(10)
		target := h.moves("web-2")
		<-asked
		target.kill()
		for us := <-asked; us.GetPodName() != "web-1"; us = <-asked {
		}
		source.wantEnd(vmpb.EndLeaseExpired)
	})
}

// A source that hangs during the copy is killed by its watchdog, together with its guest.
func TestMigration_HangingSourceIsKilled(t *testing.T) {
	tier.All(t)
	t.Parallel()
	h := newLeasedCluster(t)
	h.bandwidth = 128 << 10
	source := h.source()
	here := source.counts()
	here.numbers(10)
	target := h.moves("web-2")
	h.awaitCopy()
	must(t, source.process.Signal(syscall.SIGSTOP))
	begun := time.Now()
	<-source.process.Ended()                                         // nothing else terminates it
	if took := time.Since(begun); took > ampleLease+10*time.Second { // allow for a slow host
		t.Errorf("the source was killed after %v", took)
	}
	target.wantEnd(vmpb.EndNotArrived)
	if holder := h.controller.Holder(); holder.GetPodName() != "web-1" {
		t.Errorf("authoritative: %v", holder)
	}
}

// A target that has the authority but no lease terminates when the controller requests it, or when it is asked to
// terminate and a lease would have expired.
func TestMigration_TargetWithoutLeaseIsTerminated(t *testing.T) {
	tier.All(t)
	t.Parallel()
	for name, test := range map[string]struct {
		end  func(h *testCluster, target *member)
		want string
	}{
		"by the controller": {func(h *testCluster, _ *member) {
			h.controller.Change(func(a *authority) { a.holder = &vmpb.HypervisorID{PodName: "web-3"} })
		}, vmpb.EndTerminated},
		"by a signal": {func(_ *testCluster, target *member) { target.term() }, vmpb.EndStopped},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newLeasedCluster(t)
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
			source.wantEnd(vmpb.EndTerminated)
			test.end(h, target)
			target.wantEnd(test.want)
		})
	}
}

// awaitRuns waits until the given number of streams was opened. The error is that of the context.
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
