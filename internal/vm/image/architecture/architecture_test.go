package architecture

import (
	"bytes"
	"compress/gzip"
	"debug/elf"
	"encoding/binary"
	"io"
	"testing"

	"github.com/diskfs/go-diskfs/partition/gpt"

	"github.com/millwright-dev/millwright/test/support/gptdisk"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// with returns a file of zeros, with texts at the given offsets.
func with(at map[int]string) []byte {
	content := make([]byte, 16<<10)
	for offset, text := range at {
		copy(content[offset:], text)
	}
	return content
}

func elfFile(order binary.AppendByteOrder, data elf.Data, machine elf.Machine) []byte {
	header := append([]byte(elf.ELFMAG), byte(elf.ELFCLASS64), byte(data), 1)
	return order.AppendUint16(append(header, make([]byte, 11)...), uint16(machine))
}

func peFile(header int, machine string) []byte {
	place := binary.LittleEndian.AppendUint32(nil, uint32(header))
	return with(map[int]string{0: "MZ", 0x3c: string(place), header: "PE\x00\x00" + machine})
}

func zipped(t testing.TB, content []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	writer := gzip.NewWriter(&out)
	_, err := writer.Write(content)
	must(t, err)
	must(t, writer.Close())
	return out.Bytes()
}

func TestArchitecture_OfKernel(t *testing.T) {
	image64 := with(map[int]string{0x38: "ARM\x64"})
	for name, test := range map[string]struct {
		file []byte
		want string
	}{
		"bzImage":                        {with(map[int]string{0x1fe: "\x55\xaa", 0x202: "HdrS"}), X86_64},
		"Image for arm64":                {image64, ARM64},
		"Image for arm64, gzip":          {zipped(t, image64), ARM64},
		"Image for riscv":                {with(map[int]string{0x30: "RISCV", 0x38: "RSC\x05"}), RISCV},
		"zImage for arm":                 {with(map[int]string{0x24: "\x18\x28\x6f\x01"}), ARM},
		"vmlinux":                        {elfFile(binary.LittleEndian, elf.ELFDATA2LSB, elf.EM_X86_64), X86_64},
		"vmlinux of 32 bits":             {elfFile(binary.LittleEndian, elf.ELFDATA2LSB, elf.EM_386), X86},
		"vmlinux for arm64":              {elfFile(binary.LittleEndian, elf.ELFDATA2LSB, elf.EM_AARCH64), ARM64},
		"vmlinux for s390":               {elfFile(binary.BigEndian, elf.ELFDATA2MSB, elf.EM_S390), "s390"},
		"vmlinux without a machine":      {elfFile(binary.LittleEndian, elf.ELFDATA2LSB, elf.EM_NONE), Unknown},
		"vmlinux for an unknown machine": {elfFile(binary.LittleEndian, elf.ELFDATA2LSB, 0xfff0), Unknown},
		"truncated ELF":                  {[]byte(elf.ELFMAG + "\x02\x01\x01"), Unknown},
		"EFI program for arm64":          {peFile(0x40, "\x64\xaa"), ARM64},
		"EFI program for loong64":        {peFile(0x80, "\x64\x62"), Loong64},
		"EFI program for x86_64":         {peFile(0x40, "\x64\x86"), X86_64},
		"EFI program, header outside":    {peFile(16<<10-4, ""), Unknown},
		"EFI program, unknown":           {peFile(0x40, "\x11\x11"), Unknown},
		"bzImage that is an EFI program": {with(map[int]string{0: "MZ", 0x3c: "\x40\x00\x00\x00", 0x40: "PE\x00\x00\x64\x86", 0x202: "HdrS"}), X86_64},
		"something else":                 {bytes.Repeat([]byte("multiboot"), 1000), Unknown},
		"gzip of something else":         {zipped(t, []byte("hello")), Unknown},
		"truncated gzip":                 {zipped(t, image64)[:11], Unknown},
		"empty":                          {nil, Unknown},
	} {
		t.Run(name, func(t *testing.T) {
			if got := OfKernel(bytes.NewReader(test.file)); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

func patched(disk []byte, at int, text string) []byte {
	disk = bytes.Clone(disk)
	copy(disk[at:], text)
	return disk
}

func TestArchitecture_OfDisk(t *testing.T) {
	const efi = gpt.EFISystemPartition
	arm64 := gptdisk.New(t, gpt.LinuxRootArm64, efi)
	for name, test := range map[string]struct {
		disk []byte
		want string
	}{
		"arm64":                          {arm64, ARM64},
		"arm64, two roots":               {gptdisk.New(t, efi, gpt.LinuxRootArm64, gpt.LinuxRootArm64), ARM64},
		"arm":                            {gptdisk.New(t, efi, gpt.LinuxRootArm), ARM},
		"x86_64":                         {gptdisk.New(t, gpt.LinuxRootX86_64, gpt.BIOSBoot, efi), X86_64},
		"arm64 and x86_64":               {gptdisk.New(t, gpt.LinuxRootArm64, gpt.LinuxRootX86_64), Unknown},
		"arm64, but with a boot program": {patched(arm64, 0, "\xeb\x63\x90"), Unknown},
		"type without an architecture":   {gptdisk.New(t, gpt.LinuxFilesystem, efi), Unknown},
		"no table":                       {make([]byte, 4<<20), Unknown},
		"truncated disk":                 {arm64[:1200], Unknown},
		"an empty disk":                  {nil, Unknown},
	} {
		t.Run(name, func(t *testing.T) {
			if got := OfDisk(bytes.NewReader(test.disk)); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

// FuzzContent checks that no content causes a panic or uses much memory. Every download is inspected.
func FuzzContent(f *testing.F) {
	f.Add(peFile(0x40, "\x64\xaa"))
	f.Add(gptdisk.New(f, gpt.LinuxRootArm64)[:34*512])
	f.Add(zipped(f, with(map[int]string{0x38: "ARM\x64"})))
	f.Fuzz(func(t *testing.T, content []byte) {
		for name, of := range map[string]func(io.ReaderAt) string{"kernel": OfKernel, "disk": OfDisk} {
			if got := of(bytes.NewReader(content)); len(got) > 32 {
				t.Errorf("a %s of %q", name, got)
			}
		}
	})
}
