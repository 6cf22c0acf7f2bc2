// Package watchdog kills a process that has outlived its lease.
//
// The watchdog is a child process. If its parent is stopped by a signal or hangs, the parent does not detect that
// its lease expires, and neither do its other children. The watchdog then kills the parent, and the kernel kills
// the other children, if package child started them with SIGKILL.
//
// The watchdog does not help if all processes stop at the same time, as in a frozen container or on a suspended
// host. The storage must reject what a guest writes between the moment when they continue and the kill.
package watchdog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millwright-dev/millwright/internal/child"
	"github.com/millwright-dev/millwright/internal/vm/lease"
)

// Now returns the time since the host was started, including the time during which it was suspended.
func Now() lease.Instant {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		panic(err) // every supported Linux kernel has this clock
	}
	return time.Duration(now.Nano())
}

// parentFD is the file descriptor of the parent's pidfd.
const parentFD = 3

// Watchdog is the child process. Its methods must not be called concurrently.
type Watchdog struct {
	process *child.Process
	pipe    *os.File
}

// Start starts a program that calls Main. It does not kill anything before Until is called.
func Start(command *exec.Cmd) (*Watchdog, error) {
	parent, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		return nil, fmt.Errorf("starting the watchdog: %w", err)
	}
	self := os.NewFile(uintptr(parent), "this process")
	defer func() { _ = self.Close() }()
	theirs, ours, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("starting the watchdog: %w", err)
	}
	defer func() { _ = theirs.Close() }()
	command.Stdin, command.ExtraFiles = theirs, []*os.File{self}
	// It gets no signal from the kernel: the watchdog exits when this process closes the pipe.
	process, err := child.Start(command, 0)
	if err != nil {
		_ = ours.Close()
		return nil, fmt.Errorf("starting the watchdog: %w", err)
	}
	return &Watchdog{process: process, pipe: ours}, nil
}

// Until sets the time at which the watchdog kills this process.
func (w *Watchdog) Until(kill lease.Instant) error {
	if _, err := w.pipe.Write(binary.LittleEndian.AppendUint64(nil, uint64(kill))); err != nil {
		return fmt.Errorf("setting the watchdog's time: %w", err)
	}
	return nil
}

// Lost is closed when the watchdog has exited. From then on, nothing kills this process when its lease expires.
func (w *Watchdog) Lost() <-chan struct{} { return w.process.Ended() }

// PID returns the process ID of the watchdog.
func (w *Watchdog) PID() int { return w.process.PID() }

// Close stops the watchdog.
func (w *Watchdog) Close() {
	_ = w.pipe.Close()
	<-w.process.Ended()
}

// Main is the program of the child. It returns when the parent has closed the pipe, has exited, or was killed.
func Main() error {
	timer, err := unix.TimerfdCreate(unix.CLOCK_BOOTTIME, unix.TFD_CLOEXEC)
	if err != nil {
		return fmt.Errorf("creating a timer: %w", err)
	}
	for {
		fds := []unix.PollFd{{Fd: int32(os.Stdin.Fd()), Events: unix.POLLIN}, {Fd: int32(timer), Events: unix.POLLIN}}
		if _, err := unix.Poll(fds, -1); err != nil {
			if errors.Is(err, unix.EINTR) {
				continue
			}
			return fmt.Errorf("waiting: %w", err)
		}
		// A later time that is pending takes precedence over the timer.
		if fds[0].Revents != 0 {
			if err := setTimer(timer); err != nil {
				return endOfPipe(err)
			}
			continue
		}
		return unix.PidfdSendSignal(parentFD, unix.SIGKILL, nil, 0)
	}
}

// setTimer sets the timer to the time in the pipe.
func setTimer(timer int) error {
	var message [8]byte
	if _, err := io.ReadFull(os.Stdin, message[:]); err != nil {
		return err
	}
	at := unix.NsecToTimespec(max(1, int64(binary.LittleEndian.Uint64(message[:]))))
	return unix.TimerfdSettime(timer, unix.TFD_TIMER_ABSTIME, &unix.ItimerSpec{Value: at}, nil)
}

func endOfPipe(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return fmt.Errorf("reading the time: %w", err)
}
