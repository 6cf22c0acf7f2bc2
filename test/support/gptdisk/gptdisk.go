// Package gptdisk creates disks with a GPT.
package gptdisk

import (
	"os"
	"path"
	"path/filepath"
	"testing"

	"github.com/diskfs/go-diskfs/backend/file"
	"github.com/diskfs/go-diskfs/filesystem/fat32"
	"github.com/diskfs/go-diskfs/partition/gpt"
)

// sectorBytes is the size of a sector.
const sectorBytes = 512

// BootBytes is the size of the disk that WriteBoot creates.
const BootBytes = 48 << 20

// WriteBoot creates a disk with an EFI system partition from which UEFI boots a program.
func WriteBoot(t testing.TB, name string, program []byte) {
	t.Helper()
	const first, size = 1 << 20, 40 << 20
	storage, err := file.CreateFromPath(name, BootBytes)
	must(t, err)
	writable, err := storage.Writable()
	must(t, err)
	must(t, (&gpt.Table{ProtectiveMBR: true, Partitions: []*gpt.Partition{
		{Index: 1, Start: first / sectorBytes, End: (first+size)/sectorBytes - 1, Type: gpt.EFISystemPartition, Name: "esp"},
	}}).Write(writable, BootBytes))
	system, err := fat32.Create(storage, size, first, sectorBytes, "esp", true)
	must(t, err)
	const loader = "/EFI/BOOT/BOOTX64.EFI"
	must(t, system.Mkdir(path.Dir(loader)))
	boot, err := system.OpenFile(loader, os.O_CREATE|os.O_RDWR)
	must(t, err)
	_, err = boot.Write(program)
	must(t, err)
	must(t, boot.Close())
	must(t, storage.Close())
}

// New returns a disk of 1 MiB with partitions of the given types, and without a BIOS boot program.
func New(t testing.TB, types ...gpt.Type) []byte {
	t.Helper()
	const size, first, partition, sector = 1 << 20, 64 << 10, 128 << 10, sectorBytes
	path := filepath.Join(t.TempDir(), "disk")
	storage, err := file.CreateFromPath(path, size)
	must(t, err)
	table := &gpt.Table{ProtectiveMBR: true}
	for i, of := range types {
		start := uint64(first+i*partition) / sector
		table.Partitions = append(table.Partitions, &gpt.Partition{Index: i + 1, Start: start, End: start + partition/sector - 1, Type: of, Name: "p"})
	}
	writable, err := storage.Writable()
	must(t, err)
	must(t, table.Write(writable, size))
	must(t, storage.Close())
	content, err := os.ReadFile(path)
	must(t, err)
	return content
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
