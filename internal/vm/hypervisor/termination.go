package hypervisor

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"unicode/utf8"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/arrival"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/disk"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/disks"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/qemu"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/vmspec"
	"github.com/millwright-dev/millwright/internal/vm/image"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// ending is the error of a process that terminates for a known reason.
type ending struct {
	reason  string
	message string
}

// Error implements error.
func (e *ending) Error() string { return e.message }

var (
	errTerminated = &ending{vmpb.EndTerminated, "the controller terminated this hypervisor"}
	errMoved      = &ending{vmpb.EndTerminated, "the virtual machine has moved to another hypervisor"}
	errExpired    = &ending{vmpb.EndLeaseExpired, "the lease was not renewed in time; another hypervisor may run the virtual machine"}
	errStopped    = &ending{vmpb.EndStopped, "stopped on request before the guest ran"}

	// errMachine is wrapped by errors of QEMU.
	errMachine = errors.New("the machine failed")
)

// TerminationOf converts the error of a process that runs a virtual machine or serves its disks to a termination
// reason.
func TerminationOf(err error) vmpb.Termination {
	var end *ending
	if errors.As(err, &end) {
		return vmpb.Termination{Reason: end.reason, Message: err.Error()}
	}
	for _, class := range []struct {
		reason string
		match  func(error) bool
	}{
		{vmpb.EndInvalidSpec, isInvalid},
		{vmpb.EndDiskLost, func(err error) bool { return errors.Is(err, disks.ErrLost) }},
		{vmpb.EndDiskLocked, func(err error) bool {
			return errors.Is(err, disk.ErrLocked) || errors.Is(err, qemu.ErrDiskLocked)
		}},
		{vmpb.EndNoSpace, func(err error) bool {
			return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.Is(err, syscall.EFBIG) || errors.Is(err, disk.ErrTooSmall)
		}},
		{vmpb.EndImageUnavailable, func(err error) bool { return errors.Is(err, image.Unavailable) }},
		{vmpb.EndImageRejected, func(err error) bool {
			return errors.Is(err, image.Rejected) || errors.Is(err, image.Invalid)
		}},
		{vmpb.EndNoQEMU, func(err error) bool {
			return errors.Is(err, qemu.ErrNotInstalled) || errors.Is(err, qemu.ErrNoUEFI)
		}},
		{vmpb.EndNetworkUnavailable, func(err error) bool { return errors.Is(err, errNetwork) }},
		{vmpb.EndQEMUFailed, func(err error) bool { return errors.Is(err, errMachine) }},
		{vmpb.EndNotArrived, func(err error) bool { return errors.Is(err, arrival.ErrNotArrived) }},
	} {
		if class.match(err) {
			return vmpb.Termination{Reason: class.reason, Message: err.Error()}
		}
	}
	return vmpb.Termination{Reason: vmpb.EndInternal, Message: err.Error()}
}

func isInvalid(err error) bool {
	var spec *vmspec.Error
	var field *qemu.FieldError
	return errors.As(err, &spec) || errors.As(err, &field) || errors.Is(err, disk.ErrNotFile) || errors.Is(err, disk.ErrNotDevice)
}

// MaxTerminationBytes is the maximum size of a container's termination message that the kubelet reads.
const MaxTerminationBytes = 4096

// WriteTermination writes the reason for terminating to a file for Kubernetes and returns the exit code to use.
// The exit code is valid even if WriteTermination returns an error. It creates the file if necessary and truncates
// a message that is too long. It overwrites an existing file in place, so it works on a full disk if the file has
// enough space reserved.
func WriteTermination(path string, termination vmpb.Termination) (int, error) {
	text, err := encodeTermination(termination)
	if err == nil {
		err = overwrite(path, text)
	}
	if err != nil {
		err = fmt.Errorf("writing the termination message: %w", err)
	}
	return exitCode(termination.Reason), err
}

// overwrite does not replace the file by renaming, because the path may be a mount point.
func overwrite(path string, text []byte) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	_, err = file.Write(text)
	if err == nil {
		err = file.Truncate(int64(len(text)))
	}
	return errors.Join(err, file.Close())
}

func exitCode(reason string) int {
	switch reason {
	case vmpb.EndGuestShutdown, vmpb.EndTerminated, vmpb.EndStopped:
		return 0
	default:
		return 1
	}
}

// encodeTermination returns JSON that is short enough for Kubernetes. It shortens the message if necessary.
func encodeTermination(termination vmpb.Termination) ([]byte, error) {
	termination.Message = strings.ToValidUTF8(termination.Message, string(utf8.RuneError))
	for {
		text, err := json.Marshal(termination)
		if err != nil || len(text) <= MaxTerminationBytes || termination.Message == "" {
			return text, err
		}
		// One byte of the message takes one to six bytes in JSON.
		excess := len(text) - MaxTerminationBytes
		keep := max(0, len(termination.Message)-max(1, excess/6))
		termination.Message = cutRune(termination.Message, keep)
	}
}

// cutRune keeps at most n bytes, and only whole runes.
func cutRune(text string, n int) string {
	for n > 0 && n < len(text) && !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n]
}
