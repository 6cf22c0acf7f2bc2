package main

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// module returns an ELF file with only a section .modinfo.
func module(t *testing.T, info string) []byte {
	t.Helper()
	const names = "\x00.modinfo\x00.shstrtab\x00"
	const headerSize, sectionSize = 64, 64
	header := elf.Header64{
		Ident: [elf.EI_NIDENT]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)},
		Type:  uint16(elf.ET_REL), Machine: uint16(elf.EM_X86_64), Version: uint32(elf.EV_CURRENT),
		Shoff: headerSize, Ehsize: headerSize, Shentsize: sectionSize, Shnum: 3, Shstrndx: 2,
	}
	data := uint64(headerSize + 3*sectionSize)
	sections := []elf.Section64{
		{},
		{Name: 1, Type: uint32(elf.SHT_PROGBITS), Off: data, Size: uint64(len(info)), Addralign: 1},
		{Name: 10, Type: uint32(elf.SHT_STRTAB), Off: data + uint64(len(info)), Size: uint64(len(names)), Addralign: 1},
	}
	var out bytes.Buffer
	for _, part := range []any{header, sections, []byte(info), []byte(names)} {
		if err := binary.Write(&out, binary.LittleEndian, part); err != nil {
			t.Fatal(err)
		}
	}
	return out.Bytes()
}

func moduleDir(t *testing.T, modules map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for path, dependencies := range modules {
		path = filepath.Join(dir, path)
		content := module(t, "license=GPL\x00depends="+dependencies+"\x00name=x\x00")
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, content, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestOrdered(t *testing.T) {
	dir := moduleDir(t, map[string]string{
		"virtio/virtio.ko": "", "virtio/virtio_ring.ko": "", "virtio/virtio_pci.ko": "virtio,virtio_ring",
		"hw/virtio-rng.ko": "virtio,rng-core", "hw/rng-core.ko": "", "other.ko": "missing",
	})
	got, err := orderedModules(dir, []string{"virtio_pci", "virtio_rng"})
	if err != nil {
		t.Fatal(err)
	}
	for i, path := range got {
		got[i] = filepath.Base(path)
	}
	want := []string{"virtio.ko", "virtio_ring.ko", "virtio_pci.ko", "rng-core.ko", "virtio-rng.ko"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestOrdered_RejectsMissingModules(t *testing.T) {
	dir := moduleDir(t, map[string]string{"a.ko": "b"})
	for _, name := range []string{"a", "c"} {
		if got, err := orderedModules(dir, []string{name}); err == nil {
			t.Errorf("orderedModules(%s) = %v, want an error", name, got)
		}
	}
}
