package hypervisor

import (
	"errors"
	"syscall"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/arrival"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/disk"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/disks"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/qemu"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/vmspec"
	"github.com/millwright-dev/millwright/internal/vm/image"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

// ending is an end with a known reason.
type ending struct {
	reason  string
	message string
}

// Error implements error.
func (e *ending) Error() string { return e.message }

var (
	errTerminated = &ending{vmpb.EndTerminated, "the controller ended this hypervisor"}
	errExpired    = &ending{vmpb.EndLeaseExpired, "the lease was not renewed in time; another hypervisor may run the virtual machine"}
	errStopped    = &ending{vmpb.EndStopped, "asked to end before the guest ran"}

	// errMachine is wrapped by errors of QEMU.
	errMachine = errors.New("the machine failed")
)

// TerminationOf returns the reason of an error, which is that of a process that runs or serves a virtual machine.
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
		{vmpb.EndNoQEMU, func(err error) bool { return errors.Is(err, qemu.ErrNotInstalled) }},
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
