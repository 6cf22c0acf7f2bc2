// Package architecture detects the processor architecture of kernels and disks.
//
// It reports an architecture only if it is certain. For most disks the architecture is unknown: the program that
// boots is a file in a file system.
package architecture

import (
	"bytes"
	"debug/elf"
	"debug/pe"
	"encoding/binary"
	"io"
	"strings"

	"github.com/klauspost/compress/gzip"
)

// Names of architectures. Other values are possible: the lower-case names from the ELF specification, such as
// "s390".
const (
	// Unknown means that the architecture is not known.
	Unknown = ""
	X86_64  = "x86_64"
	// X86 is the 32-bit architecture. An x86_64 processor can boot it, too.
	X86     = "x86"
	ARM64   = "arm64"
	ARM     = "arm"
	RISCV   = "riscv"
	Loong64 = "loong64"
	// ppc64le and s390x are detected only on disks.
	ppc64le = "ppc64le"
	s390x   = "s390x"
)

// kernelStart is how many bytes of a kernel are inspected.
const kernelStart = 8 << 10

// OfKernel returns the architecture of a Linux kernel, in any of the formats that boot loaders support or
// compressed with gzip. It returns Unknown for other formats.
func OfKernel(file io.ReaderAt) string {
	start := head(io.NewSectionReader(file, 0, kernelStart))
	if known := ofKernel(start); known != Unknown {
		return known
	}
	// Kernels for arm64 have no decompressor, so they are often distributed as gzip files.
	packed, err := gzip.NewReader(bytes.NewReader(start))
	if err != nil {
		return Unknown
	}
	return ofKernel(head(packed))
}

// head returns the first bytes, as many as can be read without an error.
func head(from io.Reader) []byte {
	start := make([]byte, kernelStart)
	n, _ := io.ReadFull(from, start)
	return start[:n]
}

// mark is a magic number in the header of a kernel.
type mark struct {
	at    int
	magic string
	of    string
}

// marks are the magic numbers from Documentation/arch in Linux: x86/boot.rst, arm64/booting.rst,
// riscv/boot-image-header.rst and arm/boot/compressed/head.S.
var marks = []mark{
	{0x202, "HdrS", X86_64},
	{0x38, "ARM\x64", ARM64},
	{0x38, "RSC\x05", RISCV},
	{0x24, "\x18\x28\x6f\x01", ARM},
}

func ofKernel(start []byte) string {
	for _, mark := range marks {
		if len(start) > mark.at && bytes.HasPrefix(start[mark.at:], []byte(mark.magic)) {
			return mark.of
		}
	}
	if known := ofELF(start); known != Unknown {
		return known
	}
	return ofPE(start)
}

// elfMachines maps ELF machines to architectures whose names differ.
var elfMachines = map[elf.Machine]string{
	elf.EM_NONE: Unknown, elf.EM_X86_64: X86_64, elf.EM_386: X86, elf.EM_486: X86,
	elf.EM_AARCH64: ARM64, elf.EM_LOONGARCH: Loong64,
}

// ofELF reads only the header; elf.NewFile would read more.
func ofELF(start []byte) string {
	const atMachine = 18
	if len(start) < atMachine+2 || !bytes.HasPrefix(start, []byte(elf.ELFMAG)) {
		return Unknown
	}
	var order binary.ByteOrder = binary.LittleEndian
	if elf.Data(start[elf.EI_DATA]) == elf.ELFDATA2MSB {
		order = binary.BigEndian
	}
	machine := elf.Machine(order.Uint16(start[atMachine:]))
	if name, ok := elfMachines[machine]; ok {
		return name
	}
	name, named := strings.CutPrefix(machine.String(), "EM_")
	if !named || strings.Contains(name, "+") {
		return Unknown // a machine without a name
	}
	return strings.ToLower(name)
}

var peMachines = map[uint16]string{
	pe.IMAGE_FILE_MACHINE_AMD64: X86_64, pe.IMAGE_FILE_MACHINE_I386: X86,
	pe.IMAGE_FILE_MACHINE_ARM64: ARM64, pe.IMAGE_FILE_MACHINE_ARM: ARM, pe.IMAGE_FILE_MACHINE_ARMNT: ARM,
	pe.IMAGE_FILE_MACHINE_RISCV64: RISCV, pe.IMAGE_FILE_MACHINE_LOONGARCH64: Loong64,
}

// ofPE handles kernels that are UEFI programs.
func ofPE(start []byte) string {
	const atHeader, signature = 0x3c, "PE\x00\x00"
	if len(start) < atHeader+4 || !bytes.HasPrefix(start, []byte("MZ")) {
		return Unknown
	}
	header := int64(binary.LittleEndian.Uint32(start[atHeader:]))
	if header+int64(len(signature))+2 > int64(len(start)) || !bytes.HasPrefix(start[header:], []byte(signature)) {
		return Unknown
	}
	return peMachines[binary.LittleEndian.Uint16(start[header+int64(len(signature)):])]
}
