package qemu

import (
	"context"
	"fmt"
)

// Destination describes where a machine is sent.
type Destination struct {
	// Exports receive the disks, one for each disk. If empty, the disks are not copied, because the other machine
	// uses the same disks.
	Exports []Export
	// Bandwidth limits each copy, in bytes per second. Disks are copied one after another, each with this limit.
	// If 0, the disks are not limited, and QEMU's default applies to the memory.
	Bandwidth uint64
}

// Progress is the progress of a copy, in bytes.
type Progress struct{ Done, Total uint64 }

// Send copies the disks and the memory to another machine while the guest runs, and then stops the guest. QEMU
// connects to DiskSocket and MemorySocket. Finish sends the rest. After an error, or instead of Finish, Abandon
// must be called.
//
// QEMU is not given a return path from the other machine. With a return path, it would continue the guest if an
// acknowledgement is lost, and the other machine might run it, too.
func (p *Process) Send(ctx context.Context, to Destination, progress func(Progress)) error {
	err := p.setCapabilities(ctx, map[string]bool{"events": true, "pause-before-switchover": true, "return-path": false})
	if err != nil {
		return err
	}
	if to.Bandwidth != 0 {
		if err := p.monitor.Execute(ctx, "migrate-set-parameters", object{"max-bandwidth": to.Bandwidth}, nil); err != nil {
			return err
		}
	}
	if len(to.Exports) > 0 {
		if err := p.mirror(ctx, to, progress); err != nil {
			return err
		}
	}
	if err := p.monitor.Execute(ctx, "migrate", object{"uri": "unix:" + MemorySocket.path()}, nil); err != nil {
		return err
	}
	return p.await(ctx, func(ctx context.Context) (bool, error) { return p.sent(ctx, to, progress) })
}

// sent reports whether QEMU has stopped the guest.
func (p *Process) sent(ctx context.Context, to Destination, progress func(Progress)) (bool, error) {
	copies, err := p.queryMirrors(ctx)
	if err == nil {
		err = copies.failure(to.Exports)
	}
	if err != nil {
		return false, err
	}
	info, err := p.queryMigration(ctx)
	if err != nil {
		return false, err
	}
	disks := copies.progress(to.Exports)
	progress(Progress{disks.Done + info.RAM.Transferred, disks.Total + info.RAM.Transferred + info.RAM.Remaining})
	if info.Status.over() {
		return false, fmt.Errorf("sending the memory: %s (%s)", info.Status, info.Error)
	}
	return info.Status == preSwitchover, nil
}

// Finish sends the rest after Send. The guest is stopped. When Finish returns nil, QEMU has written everything to
// its sockets, does not continue the guest by itself, and has the status Left: Cont is possible.
func (p *Process) Finish(ctx context.Context, to Destination) error {
	if len(to.Exports) > 0 {
		if err := p.completeMirrors(ctx, to); err != nil {
			return err
		}
	}
	if err := p.monitor.Execute(ctx, "migrate-continue", object{"state": preSwitchover}, nil); err != nil {
		return err
	}
	err := p.await(ctx, func(ctx context.Context) (bool, error) {
		info, err := p.queryMigration(ctx)
		if err == nil && info.Status.over() && info.Status != migrationCompleted {
			err = fmt.Errorf("sending the rest of the memory: %s (%s)", info.Status, info.Error)
		}
		return info.Status == migrationCompleted, err
	})
	if err != nil {
		return err
	}
	// The status changes slightly later, and QEMU refuses to continue until then.
	return p.awaitEvery(ctx, sentInterval, func(ctx context.Context) (bool, error) {
		state, err := p.State(ctx)
		return state.Status == Left, err
	})
}

// Abandon cancels a migration. QEMU continues a guest that it has stopped for the migration, unless Finish has
// succeeded: then Cont continues it and acquires its disks. The sockets must be closed before, because QEMU may be
// blocked on them.
func (p *Process) Abandon(ctx context.Context) error {
	if err := p.monitor.Execute(ctx, "migrate_cancel", nil, nil); err != nil {
		return err
	}
	err := p.await(ctx, func(ctx context.Context) (bool, error) {
		info, err := p.queryMigration(ctx)
		return info.Status.over(), err
	})
	if err == nil {
		err = p.abandonMirrors(ctx)
	}
	if state, _ := p.State(ctx); err == nil && state.Status == Left {
		err = p.Activate(ctx)
	}
	return err
}
