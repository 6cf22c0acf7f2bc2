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

func newSharedCluster(t *testing.T) *testCluster {
	t.Helper()
	h := newTestCluster(t)
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

// TestSharedDisks_Migration moves a guest to hypervisors with the same disks. A hypervisor that asks for the
// authority or runs the guest holds the locks of the disks.
func TestSharedDisks_Migration(t *testing.T) {
	tier.All(t)
	t.Parallel()
	h := newSharedCluster(t)
	h.eager = true
	here := h.source()
	console := here.counts()
	console.keepsRunning()
	var asked atomic.Int64
	h.controller.Change(func(a *authority) {
		a.before = func(*vmpb.HypervisorID) error {
			asked.Add(1)
			h.first.wantLocked() // all members use its disks
			return nil
		}
	})
	for _, pod := range []string{"web-2", "web-3", "web-4"} {
		here, console = h.follows(here, console, pod)
		console.keepsRunning()
		here.wantLocked()
	}
	here.kill()
	here.wantAll(console.last)
	if asked.Load() < 3 {
		t.Errorf("got %d requests for the authority", asked.Load())
	}
	h.restartsOn(here)
}

// TestSharedDisks_MigrationOfDevices is like TestSharedDisks_Migration, with block devices. It requires leases, because the lock
// of a device is valid on only one host.
func TestSharedDisks_MigrationOfDevices(t *testing.T) {
	tier.All(t)
	t.Parallel()
	h := newSharedCluster(t)
	h.leases(ampleLease)
	here := h.start("web-1", vmpb.VMSpec_SM_RUN, func(m *member) {
		device(t, &m.disk, int64(h.size), h.scribes())
		path := ""
		device(t, &path, int64(h.data[0].GetBytes()), nil)
		m.data["logs"] = path
	})
	console := here.counts()
	for _, pod := range []string{"web-2", "web-3"} {
		console.keepsRunning()
		there := h.target(pod)
		h.names(func(int) *member { return there })
		h.controller.Change(func(a *authority) { a.migrate = true })
		console.toTheEnd()
		here.wantEnd(vmpb.EndTerminated)
		here, console = there, console.continuesOn(there)
		console.keepsRunning()
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

// Whichever of the two processes is killed while the guest runs, the guest continues on the source, or starts
// again from the same disks.
func TestSharedDisks_ProcessKilledDuringCopy(t *testing.T) {
	tier.All(t)
	t.Parallel()
	for name, killed := range map[string]string{"source": "web-1", "target": "web-2"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newSharedCluster(t)
			h.slow = true
			if killed == "web-1" {
				h.arrival.Connect = 2 * time.Second // it may be killed before it connects
			}
			source := h.source()
			here := source.counts()
			here.keepsRunning()
			target := h.moves("web-2")
			h.awaitPhase(copying)
			if killed == "web-1" {
				source.kill()
				target.wantEnd(vmpb.EndNotArrived)
				here.toTheEnd()
				source.wantAll(here.last)
				h.restartsOn(source)
				return
			}
			h.names(func(int) *member { return nil }) // no target replaces the killed one
			target.kill()
			h.awaitPhase(failed)
			here.keepsRunning()
			source.wantLocked()
			h.migratesAgain(source, here)
		})
	}
}

// After the commit, the guest continues where the controller decides, no matter which process is killed.
func TestSharedDisks_ProcessKilledAfterCommit(t *testing.T) {
	tier.All(t)
	t.Parallel()
	for name, killed := range map[string]string{"source": "web-1", "target": "web-2", "both": "both"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newSharedCluster(t)
			h.departure.Switchover = waitTimeout
			if killed == "web-2" {
				h.departure.Switchover = 2 * time.Second
			}
			asked, release := h.holdSwitchovers()
			source := h.source()
			here := source.counts()
			here.keepsRunning()
			target := h.moves("web-2")
			<-asked
			if killed != "web-2" {
				source.kill()
			}
			if killed != "web-1" {
				target.kill()
			}
			release()
			switch killed {
			case "both":
				here.toTheEnd()
				source.wantAll(here.last)
				h.restartsOn(source)
			case "web-1":
				here.toTheEnd()
				there := here.continuesOn(target)
				there.keepsRunning()
				target.kill()
				there.toTheEnd()
				target.wantAll(there.last)
			default:
				h.awaitReturn(source)
				here.keepsRunning()
				source.wantLocked()
				h.migratesAgain(source, here)
			}
		})
	}
}

// The authority alone does not let a source run its guest again, if another process holds one of the disks. The
// guest runs when that process releases the disk.
func TestSharedDisks_SourceWaitsForLocks(t *testing.T) {
	tier.All(t)
	t.Parallel()
	h := newSharedCluster(t)
	h.departure.Switchover, h.timing.LockRetry = 2*time.Second, 50*time.Millisecond
	asked, release := h.holdSwitchovers()
	source := h.source()
	here := source.counts()
	here.keepsRunning()
	target := h.moves("web-2")
	<-asked
	target.kill()
	lock, err := disk.Acquire(source.data["db"])
	must(t, err)
	release()
	h.awaitCause(vmpb.ReportStateRequest_CAUSE_DISK_LOCKED)
	if holder := h.controller.Holder(); holder.GetPodName() != "web-1" {
		t.Errorf("authoritative: %v", holder)
	}
	must(t, lock.Release())
	h.awaitReturn(source)
	here.keepsRunning()
	h.migratesAgain(source, here)
}

// awaitCause waits until a guest is reported as stopped for a cause.
func (h *testCluster) awaitCause(want vmpb.ReportStateRequest_Cause) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), waitTimeout)
	defer cancel()
	_, err := h.controller.AwaitReport(ctx, func(report *vmpb.ReportStateRequest) bool { return report.GetCause() == want })
	must(h.t, err)
}

// A source and a target reject each other if only one of them shares its disk. The guest keeps running.
func TestSharedDisks_OnOneSideOnlyAreRejected(t *testing.T) {
	tier.All(t)
	t.Parallel()
	for name, shared := range map[string]bool{"shared on the source": true, "shared on the target": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newTestCluster(t)
			h.shared = shared
			source := h.source()
			here := source.counts()
			here.keepsRunning()
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
			t.Logf("failed with: %s", report.GetMigration().GetMessage())
			here.keepsRunning()
			source.wantAlive()
			target.wantAlive()
			source.kill()
			here.toTheEnd()
			source.wantAll(here.last)
		})
	}
}

// A target whose disk is missing does not create another one.
func TestSharedDisks_MissingDiskIsNotCreated(t *testing.T) {
	tier.All(t)
	t.Parallel()
	h := newSharedCluster(t)
	source := h.source()
	here := source.counts()
	here.keepsRunning()
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
	target.wantEnd(vmpb.EndDiskLost)
	if _, err := os.Stat(missing); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("found a disk: %v", err)
	}
	here.keepsRunning()
}

// Another hypervisor has used the disks after the commit. The guest's memory no longer matches them, and neither
// side runs the guest, whatever the controller decides.
func TestSharedDisks_UsedByAnotherHypervisor(t *testing.T) {
	tier.All(t)
	t.Parallel()
	for name, killed := range map[string]bool{"before the target took them": false, "before the source took them back": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newSharedCluster(t)
			h.timing.LockRetry = 50 * time.Millisecond
			h.departure.Switchover = 2 * time.Second
			source := h.source()
			here := source.counts()
			here.keepsRunning()
			use := func() {
				lock, err := disk.Acquire(source.disk)
				must(t, err)
				must(t, lock.Write("web-3/1"))
				must(t, lock.Release())
			}
			if killed {
				asked, release := h.holdSwitchovers()
				target := h.moves("web-2")
				<-asked
				target.kill()
				use()
				release()
			} else {
				must(t, os.WriteFile(source.disk+".lock", []byte("web-3/1"), 0o600)) // locks do not prevent this
				target := h.moves("web-2")
				target.wantEnd(vmpb.EndDiskLocked)
			}
			here.toTheEnd()
			source.wantEnd(vmpb.EndDiskLocked)
			source.wantAll(here.last)
			h.restartsOn(source)
		})
	}
}

// A stopped guest moves in both directions, is taken back, and grows. Finally it continues and moves again.
func TestMigration_StoppedGuest(t *testing.T) {
	tier.All(t)
	t.Parallel()
	h := newSharedCluster(t)
	h.departure.Switchover = 2 * time.Second
	here := h.source()
	console := here.counts()
	console.keepsRunning()
	h.controller.Respond(leasePaused())
	h.awaitState(vmpb.ReportStateRequest_STATE_PAUSED)
	for _, pod := range []string{"web-2", "web-3"} {
		h.letsGo(here)
		there := h.moves(pod)
		here.wantEnd(vmpb.EndTerminated)
		here = there
	}
	console.toTheEnd()

	asked, release := h.holdSwitchovers()
	target := h.moves("web-4")
	<-asked
	target.kill()
	release()
	// The source has the guest again.
	h.growHeld(&vmpb.DiskSize{Name: "logs", Bytes: scribeDisk + 5<<20})
	h.controller.Respond(leaseOK())
	console = console.continuesOn(here)
	console.keepsRunning()
	h.letsGo(here)
	last := h.moves("web-5") // QEMU would not send the guest before it was continued
	console.toTheEnd()
	here.wantEnd(vmpb.EndTerminated)
	there := console.continuesOn(last)
	there.keepsRunning()
	last.kill()
	there.toTheEnd()
	last.wantAll(there.last)
}

// awaitState waits until a member reports a state.
func (h *testCluster) awaitState(want vmpb.ReportStateRequest_State) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), waitTimeout)
	defer cancel()
	_, err := h.controller.AwaitReport(ctx, func(report *vmpb.ReportStateRequest) bool { return report.GetState() == want })
	must(h.t, err)
}
