// Package gpt reads the types and positions of a disk's partitions from its GPT.
package gpt

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math"
)

// The GPT partition table; see the UEFI specification, chapter 5. Numbers are little-endian.
const (
	sector = 512

	signature      = "EFI PART"
	atEntries      = 72
	atEntryCount   = 80
	atEntrySize    = 84
	entrySize      = 128
	maxEntries     = 1024
	partitionTypes = 16
	atFirst        = 32
)

// EFISystem is the type of the partition with the programs that UEFI boots.
const EFISystem = "c12a7328-f81f-11d2-ba4b-00a0c93ec93b"

// Partition is an entry of a GPT, which may be unused.
type Partition struct {
	// Type is the type of the partition, as a GUID in lower case.
	Type string
	// Offset is the position of the partition on the disk, in bytes. It is negative if it is not on any disk.
	Offset int64
}

// Partitions returns the entries of the GPT, including unused ones. It returns nil if the disk has no GPT with sectors
// of 512 bytes and entries of the usual size.
func Partitions(disk io.ReaderAt) []Partition {
	header := make([]byte, sector)
	if _, err := disk.ReadAt(header, sector); err != nil || !bytes.HasPrefix(header, []byte(signature)) {
		return nil
	}
	count, size := binary.LittleEndian.Uint32(header[atEntryCount:]), binary.LittleEndian.Uint32(header[atEntrySize:])
	at := binary.LittleEndian.Uint64(header[atEntries:])
	if count > maxEntries || size != entrySize || at > maxEntries {
		return nil
	}
	entries := make([]byte, count*size)
	if _, err := disk.ReadAt(entries, int64(at)*sector); err != nil {
		return nil
	}
	var partitions []Partition
	for ; len(entries) > 0; entries = entries[entrySize:] {
		first := binary.LittleEndian.Uint64(entries[atFirst:])
		if first > math.MaxInt64/sector {
			partitions = append(partitions, Partition{guid([partitionTypes]byte(entries)), -1})
			continue
		}
		partitions = append(partitions, Partition{guid([partitionTypes]byte(entries)), int64(first) * sector})
	}
	return partitions
}

// guid returns the text form of a GUID, whose first three parts are little-endian.
func guid(b [partitionTypes]byte) string {
	return fmt.Sprintf("%08x-%04x-%04x-%x-%x", binary.LittleEndian.Uint32(b[:]),
		binary.LittleEndian.Uint16(b[4:]), binary.LittleEndian.Uint16(b[6:]), b[8:10], b[10:])
}
