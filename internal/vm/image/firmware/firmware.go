// Package firmware detects disks that the BIOS of virtual machines cannot boot.
package firmware

import (
	"bytes"
	"io"
	"slices"

	"github.com/millwright-dev/millwright/internal/vm/image/gpt"
)

// The first sector of a disk that a BIOS boots: a program, a table of four partitions, and a signature.
const (
	sector      = 512
	programSize = 440
	atTable     = 446
	entrySize   = 16
	atEntryType = 4
	atSignature = 510
	signature   = "\x55\xaa"
	// efiSystem is the type of an EFI system partition in this table.
	efiSystem = 0xef
)

// The descriptor of an ISO 9660 file system; see ECMA-119.
const (
	atISO9660 = 0x8001
	iso9660   = "CD001"
)

// CheckBoot returns why a BIOS certainly cannot boot a disk and what to do about it, or "". It is not certain about
// most disks: whether the program in the first sector starts an operating system is unknown. A disk without a
// signature is not reported, because a disk with an unknown first sector may contain anything.
func CheckBoot(disk io.ReaderAt) (problem string) {
	const remedy = "virtual machines boot by BIOS: use an image that supports this, or set kernelBoot"
	first := make([]byte, sector)
	if _, err := disk.ReadAt(first, 0); err != nil {
		return ""
	}
	signed := bytes.HasPrefix(first[atSignature:], []byte(signature))
	types := gpt.Types(disk)
	switch {
	case signed && HasProgram(disk):
		return ""
	case isISO9660(disk):
		return "it is an ISO 9660 image that boots only from a CD or DVD; " + remedy
	case !signed && types == nil:
		return ""
	case hasEFI(first) || slices.Contains(types, gpt.EFISystem):
		return "it boots only by UEFI; " + remedy
	default:
		return "its first sector is not a boot sector; " + remedy
	}
}

// HasProgram reports whether there is a BIOS boot program at the beginning of a disk.
func HasProgram(disk io.ReaderAt) bool {
	program := make([]byte, programSize)
	_, err := disk.ReadAt(program, 0)
	return err == nil && !bytes.Equal(program, make([]byte, programSize))
}

func isISO9660(disk io.ReaderAt) bool {
	text := make([]byte, len(iso9660))
	_, err := disk.ReadAt(text, atISO9660)
	return err == nil && string(text) == iso9660
}

func hasEFI(first []byte) bool {
	for at := atTable; at < atSignature; at += entrySize {
		if first[at+atEntryType] == efiSystem {
			return true
		}
	}
	return false
}
