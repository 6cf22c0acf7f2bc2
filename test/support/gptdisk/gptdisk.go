// Package gptdisk creates disks with a GPT.
package gptdisk

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/diskfs/go-diskfs/backend/file"
	"github.com/diskfs/go-diskfs/partition/gpt"
)

// New returns a disk of 1 MiB with partitions of the given types, and without a BIOS boot program.
func New(t testing.TB, types ...gpt.Type) []byte {
	t.Helper()
	const size, first, partition, sector = 1 << 20, 64 << 10, 128 << 10, 512
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
