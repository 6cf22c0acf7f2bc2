package architecture

import (
	"fmt"
	"io"
)

// CheckKernel returns a check that reports a problem if a kernel is certainly built for another architecture than
// the given one. QEMU starts such a kernel, and the guest then hangs, or stops with a message about a kernel that
// is too old.
func CheckKernel(expected string) func(kernel io.ReaderAt) (problem string) {
	return func(kernel io.ReaderAt) string { return foreign("it is a kernel", OfKernel(kernel), expected) }
}

// CheckDisk is like CheckKernel, for a disk that the guest boots from.
func CheckDisk(expected string) func(disk io.ReaderAt) (problem string) {
	return func(disk io.ReaderAt) string { return foreign("the system on it is", OfDisk(disk), expected) }
}

func foreign(what, is, expected string) string {
	if is == Unknown || is == expected || is == X86 && expected == X86_64 {
		return ""
	}
	return fmt.Sprintf("%s for %s, but the virtual machine has %s processors", what, is, expected)
}
