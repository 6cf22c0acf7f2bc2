package architecture

import (
	"fmt"
	"io"
)

// CheckKernel returns a check that explains what is wrong with a kernel that is certainly built for other processors
// than the wanted ones. QEMU starts such a kernel, and the guest then hangs, or terminates with a message about a
// kernel that is too old.
func CheckKernel(wanted string) func(kernel io.ReaderAt) (problem string) {
	return func(kernel io.ReaderAt) string { return foreign("it is a kernel", OfKernel(kernel), wanted) }
}

// CheckDisk returns the same check for a disk that is to be booted.
func CheckDisk(wanted string) func(disk io.ReaderAt) (problem string) {
	return func(disk io.ReaderAt) string { return foreign("the system on it is", OfDisk(disk), wanted) }
}

func foreign(what, is, wanted string) string {
	if is == Unknown || is == wanted || is == X86 && wanted == X86_64 {
		return ""
	}
	return fmt.Sprintf("%s for %s, but the virtual machine has %s processors", what, is, wanted)
}
