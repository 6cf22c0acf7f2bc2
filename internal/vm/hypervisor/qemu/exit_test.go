package qemu

import (
	"errors"
	"strings"
	"syscall"
	"testing"
)

func TestExit_Explanation(t *testing.T) {
	exited := func(code int) syscall.WaitStatus { return syscall.WaitStatus(code << 8) }
	for name, test := range map[string]struct {
		status   syscall.WaitStatus
		killed   bool
		shutdown string
		want     ExitReason
	}{
		"guest powered off":              {exited(0), false, "guest-shutdown", GuestShutdown},
		"powered off just before a kill": {exited(0), true, "guest-shutdown", GuestShutdown},
		"quit":                           {exited(0), false, "host-qmp-quit", HostQuit},
		"signal that QEMU obeys":         {exited(0), false, "host-signal", HostSignal},
		"killed by this process":         {syscall.WaitStatus(syscall.SIGKILL), true, "", HostKilled},
		"killed by another process":      {syscall.WaitStatus(syscall.SIGKILL), false, "", Crashed},
		"abort just before a kill":       {syscall.WaitStatus(syscall.SIGABRT), true, "", Crashed},
		"abort while shutting down":      {syscall.WaitStatus(syscall.SIGABRT), false, "guest-shutdown", Crashed},
		"failure":                        {exited(1), false, "", Crashed},
		"no message":                     {exited(0), false, "", Unexplained},
	} {
		t.Run(name, func(t *testing.T) {
			if got := explain(test.status, test.killed, test.shutdown); got != test.want {
				t.Errorf("reason = %s, want %s", got, test.want)
			}
		})
	}
}

func TestExit_LockMessages(t *testing.T) {
	for stderr, want := range map[string]bool{
		`qemu-system-x86_64: -device …: Failed to get "write" lock`: true,
		`Failed to get shared "write" lock`:                         true,
		`Failed to get "consistent read" lock`:                      true,
		`Failed to lock byte 100`:                                   false,
		`Could not open '/x': No such file or directory`:            false,
	} {
		err := error(&StartError{Exit: Exit{Stderr: stderr}})
		if got := errors.Is(err, ErrDiskLocked); got != want {
			t.Errorf("%s: is ErrDiskLocked = %t, want %t", stderr, got, want)
		}
	}
}

func TestExit_ExpectedWarningIsOmitted(t *testing.T) {
	const warning = "qemu: -fw_cfg name=a,file=b: warning: externally provided fw_cfg item names should be prefixed with \"opt/\"\n"
	for stderr, want := range map[string]string{
		warning:                       "",
		"a\n" + warning + "b\n":       "a\nb\n",
		"warning: something else\n":   "warning: something else\n",
		strings.TrimSpace(warning):    "",
		warning + warning + "failed.": "failed.",
	} {
		if got := unexpected(stderr); got != want {
			t.Errorf("unexpected(%q) = %q, want %q", stderr, got, want)
		}
	}
}
