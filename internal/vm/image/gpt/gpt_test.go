package gpt

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/diskfs/go-diskfs/partition/gpt"

	"github.com/millwright-dev/millwright/test/support/gptdisk"
)

func TestPartitions(t *testing.T) {
	efi, root := strings.ToLower(string(gpt.EFISystemPartition)), strings.ToLower(string(gpt.LinuxRootX86_64))
	if efi != EFISystem {
		t.Errorf("EFISystem = %q, want %q", EFISystem, efi)
	}
	disk := gptdisk.New(t, gpt.EFISystemPartition, gpt.LinuxRootX86_64)
	patched := func(at int, text string) []byte {
		disk := bytes.Clone(disk)
		copy(disk[sector+at:], text)
		return disk
	}
	for name, test := range map[string]struct {
		disk []byte
		want []Partition
	}{
		"two partitions":             {disk, []Partition{{efi, 64 << 10}, {root, 192 << 10}}},
		"partition outside any disk": {patched(sector+atFirst, "\xff\xff\xff\xff\xff\xff\xff\xff"), []Partition{{efi, -1}, {root, 192 << 10}}},
		"no table":                   {make([]byte, 1<<20), nil},
		"table at another position":  {patched(atEntries, "\xff\xff\xff\xff\xff\xff\xff\xff"), nil},
		"table without end":          {patched(atEntryCount, "\xff\xff\xff\xff"), nil},
		"entries of another size":    {patched(atEntrySize, "\x00\x00\x00\x00"), nil},
		"truncated disk":             {disk[:1200], nil},
		"an empty disk":              {nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			const unused = "00000000-0000-0000-0000-000000000000"
			got := slices.DeleteFunc(Partitions(bytes.NewReader(test.disk)), func(p Partition) bool { return p.Type == unused })
			if !slices.Equal(got, test.want) {
				t.Errorf("got %v, want %v", got, test.want)
			}
		})
	}
}
