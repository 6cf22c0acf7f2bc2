package system

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

func ioctl(file *os.File, request uintptr, argument *uint64) error {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, file.Fd(), request, uintptr(unsafe.Pointer(argument)))
	if errno != 0 {
		return os.NewSyscallError("ioctl", errno)
	}
	return nil
}
