// Package watchdog kills a process that has outlived its lease.
//
// The watchdog is a child process. Its parent may be stopped by a signal, or hang: then it does not notice that
// its lease ends, and neither do its other children. The watchdog kills it, and the kernel kills its children with
// it, if they were started by package child with SIGKILL.
//
// It does not help where all processes stop at once, as in a frozen container or on a machine that sleeps: what a
// guest does between their continuation and the kill, storage has to refuse.
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

// Now returns the time since the machine was started, in which it may have slept.
func Now() lease.Instant {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		panic(err) // every Linux has this clock
	}
	return time.Duration(now.Nano())
}

// parentFD is where the watchdog finds its parent.
const parentFD = 3

// Watchdog is the child. It is used by one goroutine at a time.
type Watchdog struct {
	process *child.Process
	pipe    *os.File
}

// Start starts a program that calls Main. Until it is told a time it kills nobody.
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
	// No signal: the pipe ends with this process.
	process, err := child.Start(command, 0)
	if err != nil {
		_ = ours.Close()
		return nil, fmt.Errorf("starting the watchdog: %w", err)
	}
	return &Watchdog{process: process, pipe: ours}, nil
}

// Until tells the watchdog when to kill this process.
func (w *Watchdog) Until(kill lease.Instant) error {
	if _, err := w.pipe.Write(binary.LittleEndian.AppendUint64(nil, uint64(kill))); err != nil {
		return fmt.Errorf("telling the watchdog: %w", err)
	}
	return nil
}

// Lost is closed when the watchdog has ended. Then nobody protects from this process any more.
func (w *Watchdog) Lost() <-chan struct{} { return w.process.Ended() }

// PID returns the process ID of the watchdog.
func (w *Watchdog) PID() int { return w.process.PID() }

// Close ends the watchdog.
func (w *Watchdog) Close() {
	_ = w.pipe.Close()
	<-w.process.Ended()
}

// Main is the child's program. It returns when the parent has closed the pipe or has ended, or was killed.
func Main() error {
	timer, err := unix.TimerfdCreate(unix.CLOCK_BOOTTIME, unix.TFD_CLOEXEC)
	if err != nil {
		return fmt.Errorf("making a timer: %w", err)
	}
	for {
		fds := []unix.PollFd{{Fd: int32(os.Stdin.Fd()), Events: unix.POLLIN}, {Fd: int32(timer), Events: unix.POLLIN}}
		if _, err := unix.Poll(fds, -1); err != nil {
			if errors.Is(err, unix.EINTR) {
				continue
			}
			return fmt.Errorf("waiting: %w", err)
		}
		// A later time that has come already counts.
		if fds[0].Revents != 0 {
			if err := obey(timer); err != nil {
				return endOfPipe(err)
			}
			continue
		}
		return unix.PidfdSendSignal(parentFD, unix.SIGKILL, nil, 0)
	}
}

// obey sets the timer to the time in the pipe.
func obey(timer int) error {
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
