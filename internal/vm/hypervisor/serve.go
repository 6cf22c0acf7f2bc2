package hypervisor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/qemu"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// quitLimit is how long QEMU may take to end after quit; then it is killed.
const quitLimit = 2 * time.Second

// serve runs or stops the guest as the controller wants until the guest powers off, the
// machine fails, the controller terminates this hypervisor, or the process is asked to end.
func (l *life) serve(ctx context.Context) error {
	for {
		authorization, changed := l.lease.Current()
		again, err := l.hold(ctx, authorization.Paused)
		if err != nil && ctx.Err() == nil {
			return l.lost(err)
		}
		select {
		case <-l.machine.Done():
			return ended(l.machine.Exit())
		case <-changed:
		case <-l.machine.Changed():
		case <-again:
		case <-ctx.Done():
			if errors.Is(wanted(ctx), errTerminated) {
				return l.terminate()
			}
			return l.stop()
		}
	}
}

// lost explains why a command failed. Mostly the machine has just ended; then its exit is the
// reason.
func (l *life) lost(err error) error {
	select {
	case <-l.machine.Done():
		return ended(l.machine.Exit())
	case <-time.After(quitLimit):
		return fmt.Errorf("%w: %w", errMachine, err)
	}
}

// terminate kills the guest: another hypervisor may be waiting for its disk.
func (l *life) terminate() error {
	l.server.SetServing(false)
	_ = l.machine.Kill(context.Background()) // returns when the process has ended
	return errTerminated
}

// stop asks the guest to shut down, waits, and ends it.
func (l *life) stop() error {
	l.server.SetServing(false)
	l.reportState(vmpb.ReportStateRequest_STATE_STOPPING, "")
	late := time.After(l.config.Timing.Grace)
	if !l.guest.runs {
		// A stopped guest would not notice the button.
		return l.quit("the guest was held, and ended without being asked")
	}
	ctx, cancel := context.WithTimeout(context.Background(), l.config.Timing.Grace)
	defer cancel()
	if err := l.machine.Powerdown(ctx); err != nil {
		l.log.Warn("the power button cannot be pressed", "error", err)
	}
	for {
		authorization, changed := l.lease.Current()
		if authorization.Terminated {
			return l.terminate()
		}
		select {
		case <-l.machine.Done():
			return stopped(l.machine.Exit())
		case <-late:
			return l.quit("the guest did not shut down in time, and was ended")
		case <-changed:
		}
	}
}

// quit lets QEMU write its buffers to the disk. If it does not end, close kills it.
func (l *life) quit(message string) error {
	ctx, cancel := context.WithTimeout(context.Background(), quitLimit)
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
