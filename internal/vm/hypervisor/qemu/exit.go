package qemu

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"syscall"
)

var (
	// ErrDiskLocked means that another process holds the lock of a disk, most likely another QEMU that runs the
	// same machine. Nothing was written. The kernel releases the lock when that process terminates.
	ErrDiskLocked = errors.New("another process holds the disk's lock")

	// ErrNotInstalled means that the QEMU program was not found.
	ErrNotInstalled = errors.New("QEMU is not installed")
)

// ExitReason is the reason why a machine's process exited.
type ExitReason string

const (
	// GuestShutdown means that the guest powered itself off.
	GuestShutdown ExitReason = "GuestShutdown"
	// HostQuit means that Quit was called.
	HostQuit ExitReason = "HostQuit"
	// HostKilled means that Kill was called.
	HostKilled ExitReason = "HostKilled"
	// HostSignal means that QEMU exited because of a signal from another process, such as SIGTERM.
	HostSignal ExitReason = "HostSignal"
	// Crashed means that QEMU failed or another process killed it.
	Crashed ExitReason = "Crashed"
	// Unexplained means that QEMU exited without a failure and without a reason.
	Unexplained ExitReason = "Unexplained"
)

// Exit describes how a machine's process exited.
type Exit struct {
	// Reason is the reason for the exit.
	Reason ExitReason
	// Code is the exit code, or -1 if a signal terminated the process.
	Code int
	// Signal is the signal that terminated the process, or 0.
	Signal syscall.Signal
	// Stderr is the end of QEMU's standard error output.
	Stderr string
}

// String describes the exit in one line, for users.
func (e Exit) String() string {
	text := fmt.Sprintf("%s (exit code %d)", e.Reason, e.Code)
	if e.Signal != 0 {
		text = fmt.Sprintf("%s (signal: %s)", e.Reason, e.Signal)
	}
	if output := strings.TrimSpace(e.Stderr); output != "" {
		text += ": " + output
	}
	return text
}

// StartError means that QEMU exited before it responded. It matches ErrDiskLocked if that was the cause.
type StartError struct {
	// Exit describes how the process exited. Its Stderr contains the cause.
	Exit Exit
}

// Error implements error.
func (e *StartError) Error() string { return "QEMU did not start: " + e.Exit.String() }

// Is reports whether the target is ErrDiskLocked and the disk was locked.
func (e *StartError) Is(target error) bool {
	return target == ErrDiskLocked && lockError.MatchString(e.Exit.Stderr)
}

// lockError matches QEMU's message for each of the locks that it takes on an image. QEMU has no error class for
// these errors.
var lockError = regexp.MustCompile(`Failed to get (shared )?"[a-z ]+" lock`)

// expected matches QEMU's warning about the names of the fw_cfg items, which can be ignored.
var expected = regexp.MustCompile(`(?m)^.*warning: externally provided fw_cfg item names should be prefixed with "opt/"\n?`)

func unexpected(stderr string) string { return expected.ReplaceAllString(stderr, "") }

// explain returns why QEMU exited, based on its exit status and the reason in its last SHUTDOWN event.
func explain(status syscall.WaitStatus, killed bool, shutdown string) ExitReason {
	switch {
	case killed && status.Signaled() && status.Signal() == syscall.SIGKILL:
		return HostKilled
	case status.Signaled() || status.ExitStatus() != 0:
		return Crashed
	}
	switch shutdown {
	case "guest-shutdown":
		return GuestShutdown
	case "host-qmp-quit":
		return HostQuit
	case "host-signal":
		return HostSignal
	default:
		return Unexplained
	}
}
