package hypervisor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/qemu"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/qmp"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// serve runs or stops the guest as the controller wants until the guest powers off, the
// machine fails, the controller terminates this hypervisor, or the process is asked to end and
// the VM has left or shut down.
func (l *life) serve(asked <-chan struct{}) error {
	l.leaving.prepare(l)
	for {
		changed, err := l.obey()
		if err != nil {
			return err
		}
		if l.leaving.shutDown && l.leaving.idle() {
			return l.stop()
		}
		again, err := l.keep(changed, asked)
		if err != nil {
			return l.lost(err)
		}
		if err := l.await(changed, again, &asked); err != nil {
			return err
		}
	}
}

// await waits until there is something to do, and does what belongs to the end. asked is nil from then on. The
// error is the end.
func (l *life) await(changed <-chan struct{}, again <-chan time.Time, asked *<-chan struct{}) error {
	select {
	case <-l.machine.Done():
		return ended(l.machine.Exit())
	case <-changed:
	case <-l.machine.Changed():
	case <-again:
	case <-l.deadline:
		return l.expire()
	case result := <-l.leaving.results():
		return l.take(result)
	case <-*asked:
		*asked = nil
		return l.leave()
	case <-l.config.Urged:
		l.leaving.hurry()
	case <-l.leaving.doubt:
		return l.despair()
	case <-l.leaving.late:
		l.leaving.why = "The time for migrating is over."
		return l.leaveNoMore()
	}
	return nil
}

// keep is hold, unless QEMU must be left alone. It does not wait for QEMU when there is something else to do.
func (l *life) keep(changed, asked <-chan struct{}) (again <-chan time.Time, err error) {
	if l.leaving.handsOff() {
		return nil, nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		select {
		case <-changed:
		case <-asked:
		case <-ctx.Done():
		}
		cancel()
	}()
	l.growDisks(ctx)
	again, err = l.hold(ctx, l.paused)
	if ctx.Err() != nil {
		return nil, nil
	}
	if errors.Is(err, qmp.ErrDisconnected) {
		return l.guest.closes(err, l.config.Timing.Command)
	}
	return again, err
}

// closes has the end of QEMU awaited, which has closed its connection: returning the memory of a large guest takes it seconds.
// What lost gives is too short for that, and a guest that powered itself off would count as a failure. After the
// limit, the error is that of the connection.
func (g *guest) closes(disconnected error, limit time.Duration) (again <-chan time.Time, err error) {
	if g.closing.IsZero() {
		g.closing = time.Now().Add(limit)
	}
	left := time.Until(g.closing)
	if left <= 0 {
		return nil, disconnected
	}
	return time.After(left), nil
}

// lost explains why a command failed. Mostly the machine has just ended; then its exit is the
// reason.
func (l *life) lost(err error) error {
	select {
	case <-l.machine.Done():
		return ended(l.machine.Exit())
	case <-time.After(l.config.Timing.Quit):
		return fmt.Errorf("%w: %w", errMachine, err)
	}
}

// terminate kills the guest: another hypervisor may be waiting for its disk.
func (l *life) terminate(why error) error {
	l.server.SetServing(false)
	_ = l.machine.Kill(context.Background()) // returns when the process has ended
	return why
}

// stop asks the guest to shut down, waits, and ends it.
func (l *life) stop() error {
	l.server.SetServing(false)
	l.reportState(vmpb.ReportStateRequest_STATE_STOPPING, l.leaving.why)
	late := time.After(l.config.Timing.Grace)
	if !l.runs() {
		// A stopped guest would not notice the button.
		return l.quit("the guest was held, and ended without being asked")
	}
	ctx, cancel := context.WithTimeout(context.Background(), l.config.Timing.Grace)
	defer cancel()
	press := time.NewTimer(0)
	defer press.Stop()
	for {
		authorization, changed := l.lease.Current()
		if why := over(authorization); why != nil {
			return l.terminate(why)
		}
		select {
		case <-l.machine.Done():
			return stopped(l.machine.Exit())
		case <-press.C:
			if err := l.machine.Powerdown(ctx); err != nil {
				l.log.Warn("the power button cannot be pressed", "error", err)
			}
			press.Reset(l.config.Timing.Press)
		case <-late:
			return l.quit("the guest did not shut down in time, and was ended")
		case <-changed:
		}
	}
}

// runs asks QEMU whether the guest runs: it may have been continued a moment ago, and not been reported yet. If QEMU does not
// answer, what it was told last decides.
func (l *life) runs() bool {
	ctx, cancel := context.WithTimeout(context.Background(), l.config.Timing.Quit)
	defer cancel()
	state, err := l.machine.State(ctx)
	if err != nil {
		l.log.Warn("QEMU does not say whether the guest runs", "error", err)
		return l.guest.told == orderRun
	}
	return state.Status == qemu.Running
}

// quit lets QEMU write its buffers to the disk. If it does not end, close kills it.
func (l *life) quit(message string) error {
	ctx, cancel := context.WithTimeout(context.Background(), l.config.Timing.Quit)
	defer cancel()
	if err := l.machine.Quit(ctx); err != nil {
		l.log.Warn("QEMU does not quit, and is killed", "error", err)
	}
	return &ending{vmpb.EndStopped, message}
}

// ended explains the end of a machine that was not asked to end.
func ended(exit qemu.Exit) error {
	if exit.Reason == qemu.GuestShutdown {
		return &ending{vmpb.EndGuestShutdown, "the guest powered itself off"}
	}
	return &ending{vmpb.EndQEMUFailed, "QEMU ended: " + exit.String()}
}

// stopped explains the end of a machine whose guest was asked to shut down.
func stopped(exit qemu.Exit) error {
	if exit.Reason == qemu.GuestShutdown {
		return &ending{vmpb.EndStopped, "asked to end, and the guest shut down"}
	}
	return ended(exit)
}
