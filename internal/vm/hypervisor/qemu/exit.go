package qemu

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"syscall"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/qmp"
)

var (
	// ErrDiskLocked says that another process holds the lock of a disk, most
	// likely another QEMU that runs the same machine. Nothing was written. The
	// lock is free as soon as that process is gone, however it ended.
	ErrDiskLocked = errors.New("another process holds the disk's lock")

	// ErrNotInstalled says that there is no QEMU to start.
	ErrNotInstalled = errors.New("QEMU is not installed")
)

// ExitReason is why a machine's process ended.
type ExitReason string

const (
	// GuestShutdown means that the guest powered itself off.
	GuestShutdown ExitReason = "GuestShutdown"
	// HostQuit means that Quit asked for it.
	HostQuit ExitReason = "HostQuit"
	// HostKilled means that Kill ended it.
	HostKilled ExitReason = "HostKilled"
	// HostSignal means that somebody else asked QEMU to end, by a signal such as
	// SIGTERM, and QEMU obeyed.
	HostSignal ExitReason = "HostSignal"
	// Crashed means that QEMU failed, or was killed by somebody else.
	Crashed ExitReason = "Crashed"
	// Unexplained means that QEMU ended without a failure and without saying why.
	Unexplained ExitReason = "Unexplained"
)

// Exit is the end of a machine's process.
type Exit struct {
	// Reason is why it ended.
	Reason ExitReason
	// Code is the process's exit code; -1 if a signal ended it.
	Code int
	// Signal is the signal that ended it; 0 if none did.
	Signal syscall.Signal
	// Stderr is the end of what QEMU wrote to its standard error.
	Stderr string
}

// String tells the end of the process in one line, for people.
func (e Exit) String() string {
	text := fmt.Sprintf("%s (exit code %d)", e.Reason, e.Code)
	if e.Signal != 0 {
		text = fmt.Sprintf("%s (signal: %s)", e.Reason, e.Signal)
	}
	if words := strings.TrimSpace(e.Stderr); words != "" {
		text += ": " + words
	}
	return text
}

// StartError says that QEMU ended before it could be talked to. It is ErrDiskLocked
// if that was the cause.
type StartError struct {
	// Exit is the end of the process. Its Stderr says what QEMU did not like.
	Exit Exit
}

// Error implements error.
func (e *StartError) Error() string { return "QEMU did not start: " + e.Exit.String() }

// Is reports whether the target is ErrDiskLocked and the disk was locked.
func (e *StartError) Is(target error) bool {
	return target == ErrDiskLocked && tellsOfLock(e.Exit.Stderr)
}

// lockComplaint is what QEMU says of any of the locks that it takes on an image. It
// has no error class for it.
var lockComplaint = regexp.MustCompile(`Failed to get (shared )?"[a-z ]+" lock`)

// expected is what QEMU says of items of fw_cfg with names of another kind than it
// likes. They are wanted so, and people who look for the cause of an end need not know.
var expected = regexp.MustCompile(`(?m)^.*warning: externally provided fw_cfg item names should be prefixed with "opt/"\n?`)

// unexpected is the rest of QEMU's words.
func unexpected(words string) string { return expected.ReplaceAllString(words, "") }

func tellsOfLock(words string) bool {
	return lockComplaint.MatchString(words)
}

// explain returns the reason of an end: the process's own status first, then what QEMU
// said in its last SHUTDOWN event.
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

// shutdownReason waits for the end of the events and returns the reason of the last
// SHUTDOWN among them, "" if there was none.
func shutdownReason(events *qmp.Subscription) string {
	reason := ""
	for event := range events.Events() {
		if event.Name != "SHUTDOWN" {
			continue
		}
		var data struct {
			Reason string `json:"reason"`
		}
		if json.Unmarshal(event.Data, &data) == nil {
			reason = data.Reason
		}
	}
	return reason
}
