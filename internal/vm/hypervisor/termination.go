package hypervisor

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"unicode/utf8"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/disk"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/qemu"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// maxTermination is how many bytes of a container's termination message the kubelet
// reads. Half a JSON object would tell nothing.
const maxTermination = 4096

// LeaveTermination writes why the process ends into a file, which is made if it is
// not there, and returns the exit code to end with. A message that is too long for
// Kubernetes is cut. The exit code is right also with an error.
func LeaveTermination(path string, termination vmpb.Termination) (int, error) {
	text, err := encodeTermination(termination)
	if err == nil {
		// Not by a rename: the file is often a mount of its own.
		err = os.WriteFile(path, text, 0o644)
	}
	if err != nil {
		err = fmt.Errorf("leaving the termination message: %w", err)
	}
	return exitCode(termination.Reason), err
}

func exitCode(reason string) int {
	switch reason {
	case vmpb.EndGuestShutdown, vmpb.EndTerminated, vmpb.EndStopped:
		return 0
	default:
		return 1
	}
}

func encodeTermination(termination vmpb.Termination) ([]byte, error) {
	termination.Message = strings.ToValidUTF8(termination.Message, string(utf8.RuneError))
	for {
		text, err := json.Marshal(termination)
		if err != nil || len(text) <= maxTermination || termination.Message == "" {
			return text, err
		}
		// Each byte takes one or more in JSON, so this is never too much by far.
		excess := len(text) - maxTermination
		keep := max(0, len(termination.Message)-max(1, excess/6))
		termination.Message = cutRune(termination.Message, keep)
	}
}

// cutRune keeps at most n bytes, and no half letter.
func cutRune(text string, n int) string {
	for n > 0 && n < len(text) && !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n]
}

// ending is an end of which more is known than an error tells.
type ending struct {
	reason  string
	message string
}

// Error implements error.
func (e *ending) Error() string { return e.message }

var (
	errTerminated = &ending{vmpb.EndTerminated, "the controller ended this hypervisor"}
	errStopped    = &ending{vmpb.EndStopped, "asked to end before the guest ran"}
)

// terminationOf finds the reason of an error. There always is one: Run ends by errors
// only.
func terminationOf(err error) vmpb.Termination {
	var end *ending
	if errors.As(err, &end) {
		return vmpb.Termination{Reason: end.reason, Message: err.Error()}
	}
	for _, class := range []struct {
		reason string
		match  func(error) bool
	}{
		{vmpb.EndInvalidSpec, isInvalid},
		{vmpb.EndDiskLocked, func(err error) bool {
			return errors.Is(err, disk.ErrLocked) || errors.Is(err, qemu.ErrDiskLocked)
		}},
		{vmpb.EndNoSpace, func(err error) bool {
			return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.Is(err, syscall.EFBIG)
		}},
		{vmpb.EndImageUnavailable, func(err error) bool { return errors.Is(err, ErrImageUnavailable) }},
		{vmpb.EndImageRejected, func(err error) bool { return errors.Is(err, ErrImageRejected) }},
		{vmpb.EndNoQEMU, func(err error) bool { return errors.Is(err, qemu.ErrNotInstalled) }},
		{vmpb.EndQEMUFailed, func(err error) bool { return errors.Is(err, errMachine) }},
	} {
		if class.match(err) {
			return vmpb.Termination{Reason: class.reason, Message: err.Error()}
		}
	}
	return vmpb.Termination{Reason: vmpb.EndInternal, Message: err.Error()}
}

// isInvalid reports whether the specification, or what was configured, is to blame.
func isInvalid(err error) bool {
	var spec *SpecError
	var field *qemu.FieldError
	return errors.As(err, &spec) || errors.As(err, &field) || errors.Is(err, disk.ErrNotFile)
}
