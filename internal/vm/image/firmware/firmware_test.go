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
			got := CheckBoot(bytes.NewReader(test.disk))
			if test.want == "" && got != "" || !strings.HasPrefix(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}
