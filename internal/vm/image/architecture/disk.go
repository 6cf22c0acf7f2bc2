package architecture

import (
	"io"

	"github.com/millwright-dev/millwright/internal/vm/image/firmware"
	"github.com/millwright-dev/millwright/internal/vm/image/gpt"
)

// roots maps the partition types of Linux root file systems to architectures. Source: the Discoverable Partitions
// Specification of the UAPI Group.
var roots = map[string]string{
	"4f68bce3-e8cd-4db1-96e7-fbcaf984b709": X86_64,
	"44479540-f297-41b2-9af7-d131d5f0458a": X86,
	"b921b045-1df0-41c3-af44-4c6f280d3fae": ARM64,
	"69dad710-2ce4-4e3c-b16c-21a1d49abed3": ARM,
	"72ec70a6-cf74-40e6-bd49-4bda08e8f224": RISCV,
	"77055800-792c-4f94-b39a-98c91b762bb6": Loong64,
	"c31c45e6-3f39-412e-80fb-4809c4980599": ppc64le,
	"5eead9a9-fe09-4a1e-a1d7-520d00531306": s390x,
}

// OfDisk returns the architecture of the only operating system on a disk that a BIOS cannot boot. It returns
// Unknown for all other disks: those with a BIOS boot program, with systems for several architectures, or without
// a GPT that names the architecture.
func OfDisk(disk io.ReaderAt) string {
	if firmware.HasProgram(disk) {
		return Unknown
	}
	only := Unknown
	for _, partition := range gpt.Partitions(disk) {
		switch root := roots[partition.Type]; {
		case root == Unknown || root == only:
		case only != Unknown:
			return Unknown
		default:
			only = root
		}
	}
	return only
}
