package hypervisor

import (
	"fmt"
	"io"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/qemu"
	"github.com/millwright-dev/millwright/internal/vm/image/architecture"
)

// QEMU starts what is made for other processors, too, and the guest then does nothing for ever, or it ends
// with a message about a kernel that is too old. So it is refused before. What is unknown is not.

// foreignKernel returns what is wrong with a kernel for other processors than the guest's.
func foreignKernel(kernel io.ReaderAt) (problem string) {
	return foreign(architecture.OfKernel(kernel), "it is a kernel for %s, and the virtual machine has processors of %s")
}

// foreignDisk is the same for a disk that is to be booted.
func foreignDisk(disk io.ReaderAt) (problem string) {
	return foreign(architecture.OfDisk(disk), "the system on it is for %s, and the virtual machine has processors of %s")
}

func foreign(is, sentence string) string {
	switch is {
	case architecture.Unknown, qemu.Architecture, architecture.X86: // of 32 bits, which these processors know
		return ""
	}
	return fmt.Sprintf(sentence, is, qemu.Architecture)
}
