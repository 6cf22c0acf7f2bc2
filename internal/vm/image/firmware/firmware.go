// Package firmware detects disks that the firmware of virtual machines cannot boot.
package firmware

import (
	"bytes"
	"encoding/binary"
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
	atEntryLBA  = 8
	atSignature = 510
	signature   = "\x55\xaa"
)

// Types of partitions in this table.
const (
	extended    = 0x05
	extendedLBA = 0x0f
	protective  = 0xee
	efiSystem   = 0xef
)

// The descriptor of an ISO 9660 file system; see ECMA-119.
const (
	atISO9660 = 0x8001
	iso9660   = "CD001"
)

// The names of FAT file systems in their first sectors.
const (
	atFAT16 = 54
	atFAT32 = 82
	fat     = "FAT"
)

// layout is what the beginning of a disk contains.
type layout struct {
	disk io.ReaderAt
	// signed reports whether the first sector has the signature of a boot sector.
	signed bool
	mbr    []partition
	gpt    []gpt.Partition
}

// partition is an entry of the table in the first sector, which may be unused.
type partition struct {
	of     byte
	offset int64
}

// layoutOf returns false if the disk cannot be read.
func layoutOf(disk io.ReaderAt) (layout, bool) {
	first := make([]byte, sector)
	if _, err := disk.ReadAt(first, 0); err != nil {
		return layout{}, false
	}
	l := layout{disk: disk, signed: bytes.HasPrefix(first[atSignature:], []byte(signature)), gpt: gpt.Partitions(disk)}
	for at := atTable; at < atSignature; at += entrySize {
		l.mbr = append(l.mbr, partition{first[at+atEntryType], int64(binary.LittleEndian.Uint32(first[at+atEntryLBA:])) * sector})
	}
	return l, true
}

// CheckBIOS returns why a BIOS certainly cannot boot a disk and what to do about it, or "". It is not certain about
// most disks: whether the program in the first sector starts an operating system is unknown. A disk without a
// signature is not reported, because a disk with an unknown first sector may contain anything.
func CheckBIOS(disk io.ReaderAt) (problem string) {
	l, ok := layoutOf(disk)
	switch {
	case !ok || l.signed && HasProgram(disk):
		return ""
	case isISO9660(disk):
		return "it is an ISO 9660 image that boots only from a CD or DVD; use an image of a disk, or set kernelBoot"
	case !l.signed && l.gpt == nil:
		return ""
	case l.hasEFISystem():
		return "it boots only by UEFI; set firmware: UEFI, or use an image that boots by BIOS"
	default:
		return "its first sector is not a boot sector; use an image that boots by BIOS, or set kernelBoot"
	}
}

// CheckUEFI is like CheckBIOS, for a UEFI firmware. It is certain only about disks with a boot sector or a partition
// table, because UEFI boots from FAT file systems: a disk that is one, or has one in a partition of any type, is not
// reported.
func CheckUEFI(disk io.ReaderAt) (problem string) {
	l, ok := layoutOf(disk)
	switch {
	case !ok || !l.signed && l.gpt == nil || isISO9660(disk):
		return ""
	case l.hasEFISystem() || l.hasUnknown() || l.hasFAT():
		return ""
	default:
		return "it does not boot by UEFI, because it has no EFI system partition; set firmware: BIOS, or use an image that boots by UEFI"
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

// hasType reports whether the table in the first sector has a partition of one of the types.
func (l layout) hasType(types ...byte) bool {
	return slices.ContainsFunc(l.mbr, func(p partition) bool { return slices.Contains(types, p.of) })
}

func (l layout) hasEFISystem() bool {
	return l.hasType(efiSystem) || slices.ContainsFunc(l.gpt, func(p gpt.Partition) bool { return p.Type == gpt.EFISystem })
}

// hasUnknown reports whether there are partitions that this package does not read: those in an extended partition, and
// those of a GPT in another place or of another form.
func (l layout) hasUnknown() bool {
	return l.hasType(extended, extendedLBA) || l.gpt == nil && l.hasType(protective)
}

// hasFAT reports whether the disk or one of its partitions begins like a FAT file system.
func (l layout) hasFAT() bool {
	return isFAT(l.disk, 0) ||
		slices.ContainsFunc(l.mbr, func(p partition) bool { return isFAT(l.disk, p.offset) }) ||
		slices.ContainsFunc(l.gpt, func(p gpt.Partition) bool { return isFAT(l.disk, p.Offset) })
}

func isFAT(disk io.ReaderAt, offset int64) bool {
	first := make([]byte, sector)
	if offset < 0 {
		return false
	}
	if _, err := disk.ReadAt(first, offset); err != nil {
		return false
	}
	return bytes.HasPrefix(first[atFAT16:], []byte(fat)) || bytes.HasPrefix(first[atFAT32:], []byte(fat))
}
