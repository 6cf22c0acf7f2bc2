package hypervisor_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/disk"
	"github.com/millwright-dev/millwright/internal/vm/image"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
	"github.com/millwright-dev/millwright/test/support/blockdev"
	"github.com/millwright-dev/millwright/test/support/tier"
)

// withDevice runs a test on a device, which must be created outside of the synctest bubble.
func withDevice(t *testing.T, bytes int64, run func(*fixture)) {
	_, device := blockdev.New(t, bytes)
	withFixture(t, func(w *fixture) {
		w.config.Paths.RootDisk = device
		w.config.WriteDisk = func(ctx context.Context, _ image.Source, target image.Target, _ image.Options) error {
			w.images.written++
			draft, err := disk.Disk{Path: target.Path, Bytes: uint64(target.Bytes)}.Draft(ctx)
			if err != nil {
				return err
			}
			defer draft.Discard()
			_, err = draft.WriteAt([]byte(imageContent), 0)
			return errors.Join(err, draft.Commit())
		}
		run(w)
	})
}

// The guest runs only once the controller has stored that the device has its disk, because the guest could make
// the disk look like a new one. The controller may take its time.
func TestDevice_GuestWaitsForController(t *testing.T) {
	withDevice(t, 4<<20, func(w *fixture) {
		w.preparing()
		w.controller.RefuseReports(errAway)
		p := w.start()
		pass(time.Hour)
		p.wantAlive()
		if state := w.machine().Status(); state != prelaunch {
			t.Errorf("the guest is %s before the controller knows its disk", state)
		}
		w.controller.RefuseReports(nil)
		pass(time.Minute)
		if state := w.machine().Status(); state != running {
			t.Errorf("the guest is %s", state)
		}
		p.term()
		p.wantEnd(vmpb.EndStopped)
		p = w.start() // the specification is still that of a new disk
		p.wantAlive()
		if w.images.written != 1 {
			t.Errorf("the image was written %d times", w.images.written)
		}
	})
}

func TestDevice_IsTooSmall(t *testing.T) {
	withDevice(t, 1<<20, func(w *fixture) {
		w.preparing()
		w.config.Spec.RootDiskBytes = 2 << 20
		w.start().wantEnd(vmpb.EndNoSpace)
		if len(w.machines.Started()) != 0 {
			t.Error("started a machine")
		}
	})
}

// A path below /dev must be a device. No file is created there.
func TestDevice_MissingIsNotCreated(t *testing.T) {
	withFixture(t, func(w *fixture) {
		w.config.Spec.RootDiskPath = vmpb.RootDevicePath
		w.start().wantEnd(vmpb.EndInvalidSpec)
		if _, err := os.Lstat(w.config.Paths.RootDisk); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("found a disk: %v", err)
		}
	})
}

// device turns the disk at a path into a device that starts with the given content.
func device(t *testing.T, path *string, bytes int64, content []byte) {
	t.Helper()
	_, *path = blockdev.New(t, bytes)
	file, err := os.OpenFile(*path, os.O_WRONLY, 0)
	must(t, err)
	_, err = file.WriteAt(content, 0)
	must(t, errors.Join(err, file.Close()))
}

// TestMigration_CopiesDevices moves a guest with a root disk and a data disk on devices to larger devices with
// other content. The third disk is a file.
func TestMigration_CopiesDevices(t *testing.T) {
	tier.All(t)
	t.Parallel()
	h := newTestCluster(t)
	onDevices := func(more int64, root, logs []byte) func(*member) {
		return func(m *member) {
			device(t, &m.disk, int64(h.size)+more, root)
			path := ""
			device(t, &path, int64(h.data[0].GetBytes())+more, logs)
			m.data["logs"] = path
		}
	}
	source := h.start("web-1", vmpb.VMSpec_SM_RUN, onDevices(0, h.scribes(), nil))
	here := source.counts()
	here.keepsRunning()
	if _, err := disk.Acquire(blockdev.Node(t, source.disk)); !errors.Is(err, disk.ErrLocked) {
		t.Errorf("while the guest runs: error = %v, want ErrLocked", err)
	}
	other := bytes.Repeat([]byte("other"), scribeDisk/5)
	target := h.start("web-2", vmpb.VMSpec_SM_INCOMING_MIGRATION, onDevices(1<<20, other, other))
	h.names(func(int) *member { return target })
	source.term()
	here.toTheEnd()
	source.wantEnd(vmpb.EndTerminated)
	onTarget := here.continuesOn(target)
	onTarget.keepsRunning()
	if _, err := disk.Acquire(blockdev.Node(t, target.disk)); !errors.Is(err, disk.ErrLocked) {
		t.Errorf("after the migration: error = %v, want ErrLocked", err)
	}
	target.kill()
	target.wantAll(onTarget.last)

	// The next hypervisor boots from the devices.
	h.controller.Decide("web-3")
	next := h.start("web-3", vmpb.VMSpec_SM_RUN, func(m *member) { m.disk, m.data = target.disk, target.data })
	again := next.counts()
	again.keepsRunning()
	next.kill()
	next.wantAll(again.last)
}

// A target whose device is smaller than the disk does not get the guest, which continues on the source.
func TestMigration_TargetDeviceTooSmall(t *testing.T) {
	tier.All(t)
	t.Parallel()
	h := newTestCluster(t)
	source := h.source()
	here := source.counts()
	here.keepsRunning()
	small := h.start("web-2", vmpb.VMSpec_SM_INCOMING_MIGRATION, func(m *member) { device(t, &m.disk, int64(h.size)-512, nil) })
	h.names(func(question int) *member {
		if question > 0 {
			return nil
		}
		return small
	})
	h.controller.Change(func(a *authority) { a.migrate = true })
	h.awaitPhase(failed)
	h.controller.Change(func(a *authority) { a.migrate = false })
	small.wantEnd(vmpb.EndNoSpace)
	here.keepsRunning()
	source.kill()
	here.toTheEnd()
	source.wantAll(here.last)
}
