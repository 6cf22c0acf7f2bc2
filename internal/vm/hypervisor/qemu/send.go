package qemu

import (
	"cmp"
	"context"
	"fmt"
	"time"
)

// DefaultDowntime is the default of Destination.Downtime, which is also QEMU's.
const DefaultDowntime = 300 * time.Millisecond

const (
	// defaultBandwidth is QEMU's default limit for the memory, in bytes per second.
	defaultBandwidth = 128 << 20
	// unlimited is more than any network can transfer, in bytes per second.
	unlimited = 1 << 40
)

// Destination describes where a machine is sent, and the limits of the copy.
type Destination struct {
	// Exports receive the disks, one for each disk. If empty, the disks are not copied, because the other machine
	// uses the same disks.
	Exports []Export
	// Bandwidth limits each copy, in bytes per second. Disks are copied one after another, each with this limit.
	// If 0, the disks are not limited, and QEMU's default applies to the memory of a guest that runs.
	Bandwidth uint64
	// Downtime is how long the guest may be stopped for the rest of the memory. QEMU stops the guest when it expects
	// to send the rest in this time. The default is DefaultDowntime.
	Downtime time.Duration
	// AutoConverge permits QEMU to slow the guest's CPUs down if the guest writes memory faster than it is sent.
	AutoConverge bool
	// Force reports whether Bandwidth no longer applies, and ForcedDowntime replaces Downtime. It is called at least
	// once a second, and no longer after it has returned true. If nil, the limits always apply.
	Force func() bool
	// ForcedDowntime is the downtime after Force has returned true. Required with Force.
	ForcedDowntime time.Duration
}

// Progress is the progress of a copy.
type Progress struct {
	// Done and Total are numbers of bytes.
	Done, Total uint64
	// Diverging reports whether the guest seems to write memory faster than it is sent.
	Diverging bool
}

// Send copies the disks and the memory to another machine while the guest runs, and then stops the guest. QEMU
// connects to DiskSocket and MemorySocket. Finish sends the rest. After an error, or instead of Finish, Abandon
// must be called.
//
// With TCG, the guest is stopped before its memory is copied. QEMU records which pages the guest writes during the copy,
// but if the host suspends the thread of a CPU between the check of a page and the write, TCG does not record the write
// (QEMU 7.2, notdirty_write in accel/tcg/cputlb.c), and the guest would continue with wrong memory.
//
// QEMU is not given a return path from the other machine. With a return path, it would continue the guest if an
// acknowledgement is lost, and the other machine might run it, too.
func (p *Process) Send(ctx context.Context, to Destination, progress func(Progress)) error {
	err := p.setCapabilities(ctx, map[string]bool{
		"events": true, "pause-before-switchover": true, "return-path": false, "auto-converge": to.AutoConverge,
	})
	if err != nil {
		return err
	}
	s := &sending{Process: p, to: to, progress: progress}
	bandwidth := uint64(defaultBandwidth)
	if p.emulated {
		bandwidth = unlimited // the guest waits
	}
	// QEMU keeps the limits of an earlier attempt.
	if err := s.limit(ctx, cmp.Or(to.Bandwidth, bandwidth), cmp.Or(to.Downtime, DefaultDowntime)); err != nil {
		return err
	}
	if len(to.Exports) > 0 {
		if err := s.mirror(ctx); err != nil {
			return err
		}
	}
	if p.emulated {
		if err := p.hold(ctx); err != nil {
			return err
		}
	}
	if err := p.monitor.Execute(ctx, "migrate", object{"uri": "unix:" + MemorySocket.path()}, nil); err != nil {
		return err
	}
	return p.await(ctx, s.sent)
}

// hold stops the guest for the copy. It has no effect on a guest that is already stopped.
func (p *Process) hold(ctx context.Context) error {
	state, err := p.State(ctx)
	if err != nil || state.Status != Running {
		return err
	}
	p.held.Store(true)
	return p.stop(ctx)
}

// sending is a copy to a destination.
type sending struct {
	*Process
	to       Destination
	progress func(Progress)
	forced   bool
}

// limit sets the limits of the memory.
func (s *sending) limit(ctx context.Context, bandwidth uint64, downtime time.Duration) error {
	return s.monitor.Execute(ctx, "migrate-set-parameters", object{
		"max-bandwidth": bandwidth, "downtime-limit": max(1, downtime.Milliseconds()),
	}, nil)
}

// force lifts the limits if the destination requests it. copies are the copies of disks that have begun.
func (s *sending) force(ctx context.Context, copies mirrors) error {
	if s.forced || s.to.Force == nil || !s.to.Force() {
		return nil
	}
	if err := s.limit(ctx, unlimited, s.to.ForcedDowntime); err != nil {
		return err
	}
	for _, job := range copies {
		if err := s.monitor.Execute(ctx, "block-job-set-speed", object{"device": job.ID, "speed": 0}, nil); err != nil {
			return err
		}
	}
	s.forced, s.to.Bandwidth = true, 0
	return nil
}

// sent reports whether QEMU has stopped the guest.
func (s *sending) sent(ctx context.Context) (bool, error) {
	copies, err := s.queryMirrors(ctx)
	if err == nil {
		err = copies.failure(s.to.Exports)
	}
	if err == nil {
		err = s.force(ctx, copies)
	}
	if err != nil {
		return false, err
	}
	info, err := s.queryMigration(ctx)
	if err != nil {
		return false, err
	}
	disks := copies.progress(s.to.Exports)
	s.progress(Progress{
		Done: disks.Done + info.RAM.Transferred, Total: disks.Total + info.RAM.Transferred + info.RAM.Remaining,
		Diverging: info.diverging(),
	})
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

// Abandon cancels a migration. A guest that was stopped for the migration continues, unless Finish has succeeded: then
// Cont continues it and acquires its disks. The sockets must be closed before, because QEMU may be blocked on them.
func (p *Process) Abandon(ctx context.Context) error {
	if err := p.monitor.Execute(ctx, "migrate_cancel", nil, nil); err != nil {
		return err
	}
	var info migrationInfo
	err := p.await(ctx, func(ctx context.Context) (over bool, err error) {
		info, err = p.queryMigration(ctx)
		return info.Status.over(), err
	})
	if err == nil {
		err = p.abandonMirrors(ctx)
	}
	if state, _ := p.State(ctx); err == nil && state.Status == Left {
		err = p.Activate(ctx)
	}
	// QEMU continues only guests that it has stopped itself.
	if held := p.held.Load(); err == nil && held && info.Status != migrationCompleted {
		err = p.Cont(ctx)
	}
	return err
}
