package hypervisor_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/qemu"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// holdPoint is the point at which a source blocks in a migration. Its guest is stopped, and the migration is not
// committed yet.
type holdPoint string

const (
	// holdBefore is before the rest of the copy.
	holdBefore holdPoint = "before the rest"
	// holdAfter is after the rest of the copy. QEMU has sent everything and no longer writes to any disk.
	holdAfter holdPoint = "after the rest"
)

// live starts emulated machines whose guests run during the copy, as with KVM; see qemu.Process.Send. The guests of the
// tests write to the same few pages again and again, so a write that QEMU does not record is not the last one to its page.
type live struct{ hypervisor.QEMU }

// Accelerator implements hypervisor.Starter.
func (live) Accelerator() (qemu.Accelerator, error) { return qemu.TCG + ",thread=multi", nil }

// holding starts machines that block at a hold point forever. A file records that they have blocked.
type holding struct {
	hypervisor.Starter
	at   holdPoint
	mark string
}

// Start implements hypervisor.Starter.
func (h holding) Start(ctx context.Context, config qemu.Config) (hypervisor.Machine, error) {
	machine, err := h.Starter.Start(ctx, config)
	if err != nil || h.at == "" {
		return machine, err
	}
	return held{machine, h}, nil
}

type held struct {
	hypervisor.Machine
	holding
}

// Finish blocks before or after the machine's Finish.
func (h held) Finish(ctx context.Context, to qemu.Destination) error {
	if h.at == holdAfter {
		if err := h.Machine.Finish(ctx, to); err != nil {
			return err
		}
	}
	if err := os.WriteFile(h.mark, nil, 0o600); err != nil {
		return err
	}
	<-ctx.Done()
	return context.Cause(ctx)
}

// awaitHeld waits until a member has blocked.
func (m *member) awaitHeld() {
	m.t.Helper()
	late := time.After(waitTimeout)
	for {
		if _, err := os.Stat(filepath.Join(m.root, "held")); err == nil {
			return
		}
		m.wantAlive()
		select {
		case <-time.After(10 * time.Millisecond): // another process writes the file
		case <-late:
			m.t.Fatalf("%s did not stop its guest", m.pod)
		}
	}
}

// The source is killed while its guest is stopped, before the commit. The target does not run the guest. The guest
// starts again from disks that contain everything that it wrote, from the same moment.
func TestMigration_SourceKilledWhileGuestIsStopped(t *testing.T) {
	tier.All(t)
	t.Parallel()
	for name, shared := range map[string]bool{"disks that are copied": false, "shared disks": true} {
		for _, at := range []holdPoint{holdBefore, holdAfter} {
			t.Run(name+", "+string(at), func(t *testing.T) {
				t.Parallel()
				h := newTestCluster(t)
				h.shared, h.hold = shared, at
				source := h.source()
				here := source.counts()
				here.keepsRunning()
				target := h.moves("web-2")
				source.awaitHeld()
				source.kill()
				target.wantEnd(vmpb.EndNotArrived)
				if holder := h.controller.Holder(); holder.GetPodName() != "web-1" {
					t.Errorf("authoritative: %v", holder)
				}
				here.toTheEnd()
				source.wantAll(here.last)
				h.restartsOn(source)
			})
		}
	}
}

// The rest of the copy takes too long. The guest continues on the source, whose QEMU has its disks again.
func TestMigration_RestOfCopyTakesTooLong(t *testing.T) {
	tier.All(t)
	t.Parallel()
	for name, test := range map[string]struct {
		shared bool
		at     holdPoint
	}{
		"shared disks, before the rest":         {true, holdBefore},
		"shared disks, after the rest":          {true, holdAfter},
		"disks that are copied, after the rest": {false, holdAfter},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newTestCluster(t)
			h.shared, h.hold, h.departure.Rest = test.shared, test.at, time.Second
			source := h.source()
			here := source.counts()
			here.keepsRunning()
			target := h.moves("web-2")
			h.awaitPhase(failed)
			h.controller.Change(func(a *authority) { a.migrate = false })
			target.wantEnd(vmpb.EndNotArrived)
			here.keepsRunning()
			source.kill()
			here.toTheEnd()
			source.wantAll(here.last)
		})
	}
}

// restartsOn starts another hypervisor with the disks of a terminated one.
func (h *testCluster) restartsOn(before *member) {
	h.t.Helper()
	h.hold = ""
	h.controller.Decide("web-9")
	again := h.start("web-9", vmpb.VMSpec_SM_RUN, func(m *member) { m.disk, m.data = before.disk, before.data })
	console := again.counts()
	console.keepsRunning()
	again.kill()
	console.toTheEnd()
	again.wantAll(console.last)
}
