package firmware

import (
	"bytes"
	"strings"
	"testing"

	"github.com/diskfs/go-diskfs/partition/gpt"

	"github.com/millwright-dev/millwright/test/support/gptdisk"
)

func TestBIOS_BootsDisk(t *testing.T) {
	const (
		efi     = gpt.EFISystemPartition
		program = "\xeb\x63\x90"
	)
	with := func(disk []byte, at int, text string) []byte {
		disk = bytes.Clone(disk)
		copy(disk[at:], text)
		return disk
	}
	blank := make([]byte, 64<<10)
	mbr := with(blank, atSignature, signature)
	cd := with(blank, atISO9660, iso9660)
	uefi := gptdisk.New(t, efi, gpt.LinuxRootX86_64)
	const onlyUEFI, onlyCD, noProgram = "it boots only by UEFI; ", "it is an ISO 9660 image that boots only from a CD or DVD; ", "its first sector is not a boot sector; "
	for name, test := range map[string]struct {
		disk []byte
		want string
	}{
		"UEFI":                                {uefi, onlyUEFI},
		"UEFI, without a protective MBR":      {with(uefi, atSignature, "\x00\x00"), onlyUEFI},
		"UEFI, also by BIOS":                  {with(uefi, 0, program), ""},
		"UEFI, with a BIOS boot partition":    {with(gptdisk.New(t, gpt.BIOSBoot, efi), 0, program), ""},
		"UEFI, whose boot program is missing": {gptdisk.New(t, gpt.BIOSBoot, efi), onlyUEFI},
		"UEFI, with an MBR":                   {with(mbr, atTable+entrySize+atEntryType, "\xef"), onlyUEFI},
		"GPT":                                 {gptdisk.New(t, gpt.LinuxRootX86_64), noProgram},
		"MBR":                                 {mbr, noProgram},
		"MBR with a program":                  {with(mbr, 0, program), ""},
		"no signature":                        {with(blank, 0, program), ""},
		"blank":                               {blank, ""},
		"CD":                                  {cd, onlyCD},
		"CD, UEFI":                            {with(with(cd, atSignature, signature), atTable+atEntryType, "\xef"), onlyCD},
		"CD that is also a disk":              {with(with(cd, atSignature, signature), 0, program), ""},
		"less than a sector":                  {blank[:100], ""},
		"one sector":                          {mbr[:sector], noProgram},
	} {
		t.Run(name, func(t *testing.T) {
			got := CheckBIOS(bytes.NewReader(test.disk))
			if test.want == "" && got != "" || !strings.HasPrefix(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

func TestUEFI_BootsDisk(t *testing.T) {
	const (
		program = "\xeb\x63\x90"
		start   = 64 << 10 // of the first partition of gptdisk
	)
	with := func(disk []byte, at int, text string) []byte {
		disk = bytes.Clone(disk)
		copy(disk[at:], text)
		return disk
	}
	blank := make([]byte, 128<<10)
	mbr := with(with(blank, atSignature, signature), 0, program)
	// entry adds a partition at the offset start to the table in the first sector.
	entry := func(of byte) []byte {
		return with(with(mbr, atTable+atEntryType, string([]byte{of})), atTable+atEntryLBA, string([]byte{start / sector}))
	}
	bios := with(gptdisk.New(t, gpt.BIOSBoot, gpt.LinuxRootX86_64), 0, program)
	const noPartition = "it does not boot by UEFI, because it has no EFI system partition; set firmware: BIOS, or use"
	for name, test := range map[string]struct {
		disk []byte
		want string
	}{
		"EFI system partition":                      {gptdisk.New(t, gpt.EFISystemPartition), ""},
		"EFI system partition, also by BIOS":        {with(gptdisk.New(t, gpt.BIOSBoot, gpt.EFISystemPartition), 0, program), ""},
		"EFI system partition in an MBR":            {entry(efiSystem), ""},
		"GPT of a BIOS disk":                        {bios, noPartition},
		"GPT of a BIOS disk, without a program":     {with(bios, 0, "\x00\x00\x00"), noPartition},
		"GPT, FAT file system":                      {with(bios, start+atFAT32, "FAT32   "), ""},
		"GPT, FAT file system in another partition": {with(bios, start+128<<10+atFAT16, "FAT16   "), ""},
		"GPT in another place":                      {with(bios, sector, "\x00"), ""},
		"MBR without partitions":                    {mbr, noPartition},
		"MBR, Linux":                                {entry(0x83), noPartition},
		"MBR, FAT file system":                      {with(entry(0x0c), start+atFAT32, "FAT32   "), ""},
		"MBR, extended partition":                   {entry(extended), ""},
		"MBR, extended partition, LBA":              {entry(extendedLBA), ""},
		"MBR, partition behind the end":             {with(entry(0x83), atTable+atEntryLBA, "\xff\xff\xff\xff"), noPartition},
		"FAT file system":                           {with(mbr, atFAT32, "FAT32   "), ""},
		"no signature":                              {with(blank, 0, program), ""},
		"blank":                                     {blank, ""},
		"CD":                                        {with(mbr, atISO9660, iso9660), ""},
		"less than a sector":                        {mbr[:100], ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := CheckUEFI(bytes.NewReader(test.disk))
			if test.want == "" && got != "" || !strings.HasPrefix(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}
