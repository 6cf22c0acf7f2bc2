package hypervisor_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/disk"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
	"github.com/millwright-dev/millwright/test/support/blockdev"
	"github.com/millwright-dev/millwright/test/support/tier"
)

func newSharedHousehold(t *testing.T) *household {
	t.Helper()
	h := newHousehold(t)
	h.shared = true
	return h
}

// wantLocked checks whether a process holds the locks of all disks.
func (m *member) wantLocked() {
	m.t.Helper()
	for _, path := range append([]string{m.disk}, m.data["logs"], m.data["db"]) {
		lock, err := disk.Acquire(path)
		if !errors.Is(err, disk.ErrLocked) {
			m.t.Errorf("%s: error = %v, want ErrLocked", path, err)
		}
		_ = lock.Release()
	}
}

// TestRealSharedMigration moves a guest to hypervisors with the same disks. A hypervisor that asks for the authority
// or runs the guest holds their locks.
func TestRealSharedMigration(t *testing.T) {
	tier.All(t)
	t.Parallel()
	h := newSharedHousehold(t)
	h.eager = true
	here := h.source()
	console := here.counts()
	console.runsOn()
	var asked atomic.Int64
	h.controller.Change(func(a *authority) {
		a.before = func(*vmpb.HypervisorID) error {
			asked.Add(1)
			h.first.wantLocked() // all have its disks
			return nil
		}
	})
	for _, pod := range []string{"web-2", "web-3", "web-4"} {
		here, console = h.follows(here, console, pod)
		console.runsOn()
		here.wantLocked()
	}
	here.kill()
	here.wantAll(console.last)
	if asked.Load() < 3 {
		t.Errorf("the authority was asked for %d times", asked.Load())
	}
	h.startsAgain(here)
}

// TestRealSharedDevices is the same for block devices. It needs leases, since the lock of a device is only valid on
// one host.
func TestRealSharedDevices(t *testing.T) {
	tier.All(t)
	t.Parallel()
	h := newSharedHousehold(t)
	h.leases(ampleLease)
	here := h.start("web-1", vmpb.VMSpec_SM_RUN, func(m *member) {
		device(t, &m.disk, int64(h.size), h.scribes())
		path := ""
		device(t, &path, int64(h.data[0].GetBytes()), nil)
		m.data["logs"] = path
	})
	console := here.counts()
	for _, pod := range []string{"web-2", "web-3"} {
		console.runsOn()
		there := h.target(pod)
		h.names(func(int) *member { return there })
		h.controller.Change(func(a *authority) { a.migrate = true })
		console.toTheEnd()
		here.ends(vmpb.EndTerminated)
		here, console = there, console.goesOnIn(there)
		console.runsOn()
		if _, err := disk.Acquire(blockdev.Node(t, here.disk)); !errors.Is(err, disk.ErrLocked) {
			t.Errorf("error = %v, want ErrLocked", err)
		}
	}
	here.kill()
	console.toTheEnd()
	here.wantAll(console.last)
	lock, err := disk.Acquire(here.disk)
	must(t, err)
	must(t, lock.Release())
}

// Whichever of the two is killed while the guest runs, the guest continues at the source, or starts again from the
// same disks.
func TestRealSharedDeathInTheCopy(t *testing.T) {
	tier.All(t)
	t.Parallel()
	for name, dies := range map[string]string{"source": "web-1", "target": "web-2"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newSharedHousehold(t)
			h.slow = true
			if dies == "web-1" {
				h.arrival.Connect = 2 * time.Second // it may die before it connects
			}
			source := h.source()
			here := source.counts()
			here.runsOn()
			target := h.moves("web-2")
			h.awaitPhase(copying)
			if dies == "web-1" {
				source.kill()
				target.ends(vmpb.EndNotArrived)
				here.toTheEnd()
				source.wantAll(here.last)
				h.startsAgain(source)
				return
			}
			h.names(func(int) *member { return nil }) // nobody waits for the dead one
			target.kill()
			h.awaitPhase(failed)
			here.runsOn()
			source.wantLocked()
			h.goesOn(source, here)
		})
	}
}

// After the commit the guest continues where the controller decides, whichever process is killed.
func TestRealSharedDeathAfterTheCommit(t *testing.T) {
	tier.All(t)
	t.Parallel()
	for name, dies := range map[string]string{"source": "web-1", "target": "web-2", "both": "both"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newSharedHousehold(t)
			h.departure.Switchover = waitTimeout
			if dies == "web-2" {
				h.departure.Switchover = 2 * time.Second
			}
			asked, release := h.holdSwitchovers()
			source := h.source()
			here := source.counts()
			here.runsOn()
			target := h.moves("web-2")
			<-asked
			if dies != "web-2" {
				source.kill()
			}
			if dies != "web-1" {
				target.kill()
			}
			release()
			switch dies {
			case "both":
				here.toTheEnd()
				source.wantAll(here.last)
				h.startsAgain(source)
			case "web-1":
				here.toTheEnd()
				there := here.goesOnIn(target)
				there.runsOn()
				target.kill()
				there.toTheEnd()
				target.wantAll(there.last)
			default:
				h.awaitReturn(source)
				here.runsOn()
				source.wantLocked()
				h.goesOn(source, here)
			}
		})
	}
}

// The authority alone does not let a source run its guest again: another process holds one of the disks, until it
// releases it.
func TestRealSourceWaitsForItsDisks(t *testing.T) {
	tier.All(t)
	t.Parallel()
	h := newSharedHousehold(t)
	h.departure.Switchover, h.timing.LockRetry = 2*time.Second, 50*time.Millisecond
	asked, release := h.holdSwitchovers()
	source := h.source()
	here := source.counts()
	here.runsOn()
	target := h.moves("web-2")
	<-asked
	target.kill()
	lock, err := disk.Acquire(source.data["db"])
	must(t, err)
	release()
	h.awaitCause(vmpb.ReportStateRequest_CAUSE_DISK_LOCKED)
	if holder := h.controller.Holder(); holder.GetPodName() != "web-1" {
		t.Errorf("%v is authoritative", holder)
	}
	must(t, lock.Release())
	h.awaitReturn(source)
	here.runsOn()
	h.goesOn(source, here)
}

// awaitCause waits until a guest does not run for a cause.
func (h *household) awaitCause(want vmpb.ReportStateRequest_Cause) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), waitTimeout)
	defer cancel()
	_, err := h.controller.AwaitReport(ctx, func(report *vmpb.ReportStateRequest) bool { return report.GetCause() == want })
	must(h.t, err)
}

// A source and a target reject each other if only one of them shares its disk, and the guest keeps running.
func TestRealSharedAndOwnDisks(t *testing.T) {
	tier.All(t)
	t.Parallel()
	for name, shared := range map[string]bool{"the source's": true, "the target's": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHousehold(t)
			h.shared = shared
			source := h.source()
			here := source.counts()
			here.runsOn()
			h.shared = !shared
			target := h.target("web-2")
			h.names(func(question int) *member {
				if question > 0 {
					return nil
				}
				return target
			})
			h.controller.Change(func(a *authority) { a.migrate = true })
			report := h.awaitPhase(failed)
			h.controller.Change(func(a *authority) { a.migrate = false })
			t.Logf("it failed for: %s", report.GetMigration().GetMessage())
			here.runsOn()
			source.lives()
			target.lives()
			source.kill()
			here.toTheEnd()
			source.wantAll(here.last)
		})
	}
}

// A target whose disk is missing does not create another one.
func TestRealSharedDiskIsNotThere(t *testing.T) {
	tier.All(t)
	t.Parallel()
	h := newSharedHousehold(t)
	source := h.source()
	here := source.counts()
	here.runsOn()
	missing := ""
	target := h.start("web-2", vmpb.VMSpec_SM_INCOMING_MIGRATION, func(m *member) {
		missing = filepath.Join(m.root, "missing")
		m.data["db"] = missing
	})
	h.names(func(question int) *member {
		if question > 0 {
			return nil
		}
		return target
	})
	h.controller.Change(func(a *authority) { a.migrate = true })
	h.awaitPhase(failed)
	h.controller.Change(func(a *authority) { a.migrate = false })
	target.ends(vmpb.EndDiskLost)
	if _, err := os.Stat(missing); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("there is a disk: %v", err)
	}
	here.runsOn()
}

// Another hypervisor has used the disks after the commit: the guest's memory no longer matches them, and neither side
// runs it, whatever the controller says.
func TestRealSharedDisksWereUsed(t *testing.T) {
	tier.All(t)
	t.Parallel()
	for name, dies := range map[string]bool{"before the target took them": false, "before the source took them back": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newSharedHousehold(t)
			h.timing.LockRetry = 50 * time.Millisecond
			h.departure.Switchover = 2 * time.Second
			source := h.source()
			here := source.counts()
			here.runsOn()
			use := func() {
				lock, err := disk.Acquire(source.disk)
				must(t, err)
				must(t, lock.Write("web-3/1"))
				must(t, lock.Release())
			}
			if dies {
				asked, release := h.holdSwitchovers()
				target := h.moves("web-2")
				<-asked
				target.kill()
				use()
				release()
			} else {
				must(t, os.WriteFile(source.disk+".lock", []byte("web-3/1"), 0o600)) // locks do not keep from that
				target := h.moves("web-2")
				target.ends(vmpb.EndDiskLocked)
			}
			here.toTheEnd()
			source.ends(vmpb.EndDiskLocked)
			source.wantAll(here.last)
			h.startsAgain(source)
		})
	}
}

// A stopped guest moves in both directions, is taken back, and grows. Finally it continues, and moves again.
func TestRealHeldGuestMoves(t *testing.T) {
	tier.All(t)
	t.Parallel()
	h := newSharedHousehold(t)
	h.departure.Switchover = 2 * time.Second
	here := h.source()
	console := here.counts()
	console.runsOn()
	h.controller.Answer(leasePaused())
	h.awaitState(vmpb.ReportStateRequest_STATE_PAUSED)
	for _, pod := range []string{"web-2", "web-3"} {
		h.letsGo(here)
		there := h.moves(pod)
		here.ends(vmpb.EndTerminated)
		here = there
	}
	console.toTheEnd()

	asked, release := h.holdSwitchovers()
	target := h.moves("web-4")
	<-asked
	target.kill()
	release()
	// Once it has the guest again:
	h.growHeld(&vmpb.DiskSize{Name: "logs", Bytes: scribeDisk + 5<<20})
	h.controller.Answer(leaseOK())
	console = console.goesOnIn(here)
	console.runsOn()
	h.letsGo(here)
	last := h.moves("web-5") // QEMU would not send it before it was continued
	console.toTheEnd()
	here.ends(vmpb.EndTerminated)
	there := console.goesOnIn(last)
	there.runsOn()
	last.kill()
	there.toTheEnd()
	last.wantAll(there.last)
}

// awaitState waits until a member reports a state.
func (h *household) awaitState(want vmpb.ReportStateRequest_State) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), waitTimeout)
	defer cancel()
	_, err := h.controller.AwaitReport(ctx, func(report *vmpb.ReportStateRequest) bool { return report.GetState() == want })
	must(h.t, err)
}
