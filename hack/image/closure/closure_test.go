package main

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// unpacked is a directory with packages, and the package of each file.
type unpacked struct {
	t                *testing.T
	from, to, owners string
}

// newUnpacked creates a program that loads a library behind links, which loads another library.
func newUnpacked(t *testing.T) *unpacked {
	t.Helper()
	u := &unpacked{t: t, from: t.TempDir(), to: t.TempDir()}
	u.write("usr/bin/program", library(t, "libone.so.1"), "tools 1.0")
	u.write("usr/lib/x86_64-linux-gnu/libone.so.1.2.3", library(t, "libtwo.so"), "one 2:1.2.3-1")
	u.link("usr/lib/x86_64-linux-gnu/libone.so.1", "libone.so.1.2", "one 2:1.2.3-1")
	u.link("usr/lib/x86_64-linux-gnu/libone.so.1.2", "/usr/lib/x86_64-linux-gnu/libone.so.1.2.3", "one 2:1.2.3-1")
	u.write("lib/x86_64-linux-gnu/libtwo.so", library(t), "two 2.0")
	u.write("lib/x86_64-linux-gnu/libthree.so", library(t), "three 3.0")
	u.write("usr/share/doc/tools/copyright", []byte("of tools"), "tools 1.0")
	u.write("usr/share/doc/one/copyright", []byte("of one and two"), "one 2:1.2.3-1")
	u.link("usr/share/doc/two", "one", "two 2.0")
	return u
}

func (u *unpacked) write(name string, content []byte, owner string) {
	u.t.Helper()
	file := filepath.Join(u.from, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		u.t.Fatal(err)
	}
	if err := os.WriteFile(file, content, 0o600); err != nil {
		u.t.Fatal(err)
	}
	u.owners += owner + " " + name + "\n"
}

func (u *unpacked) link(name, to, owner string) {
	u.t.Helper()
	if err := os.Symlink(to, filepath.Join(u.from, name)); err != nil {
		u.t.Fatal(err)
	}
	u.owners += owner + " " + name + "\n"
}

// run runs the command and returns its output.
func (u *unpacked) run(paths ...string) (string, error) {
	u.t.Helper()
	owners := filepath.Join(u.t.TempDir(), "owners")
	if err := os.WriteFile(owners, []byte(u.owners), 0o600); err != nil {
		u.t.Fatal(err)
	}
	var out bytes.Buffer
	err := run(append([]string{"--from", u.from, "--owners", owners, "--to", u.to}, paths...), &out)
	return out.String(), err
}

func TestCopy_IncludesLibraries(t *testing.T) {
	u := newUnpacked(t)
	out, err := u.run("usr/bin/program")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff("one 2:1.2.3-1\ntools 1.0\ntwo 2.0\n", out); diff != "" {
		t.Errorf("packages (-want +got):\n%s", diff)
	}
	var copied []string
	err = filepath.WalkDir(u.to, func(path string, entry os.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			name, _ := filepath.Rel(u.to, path)
			copied = append(copied, name)
			if !entry.Type().IsRegular() {
				t.Errorf("%s has type %s", name, entry.Type())
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"lib/x86_64-linux-gnu/libtwo.so", "usr/bin/program", "usr/lib/x86_64-linux-gnu/libone.so.1",
		"usr/share/doc/one/copyright", "usr/share/doc/tools/copyright", "usr/share/doc/two/copyright",
	}
	if diff := cmp.Diff(want, copied); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
}

func TestCopy_RejectsMissingLibraries(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*unpacked)
		paths  []string
		want   string
	}{
		"no such file":      {nil, []string{"usr/bin/other"}, "usr/bin/other"},
		"no path":           {nil, nil, "required"},
		"a library":         {func(u *unpacked) { u.write("usr/bin/other", library(u.t, "libnone.so"), "tools 1.0") }, []string{"usr/bin/other"}, "libnone.so"},
		"no copyright file": {nil, []string{"lib/x86_64-linux-gnu/libthree.so"}, "three"},
		"no owner":          {func(u *unpacked) { u.owners = "" }, []string{"usr/bin/program"}, "no package"},
		"invalid owners":    {func(u *unpacked) { u.owners = "nonsense\n" }, []string{"usr/bin/program"}, "nonsense"},
		"circular links":    {func(u *unpacked) { u.link("circle", "circle", "tools 1.0") }, []string{"circle"}, "links"},
	} {
		t.Run(name, func(t *testing.T) {
			u := newUnpacked(t)
			if c.change != nil {
				c.change(u)
			}
			if _, err := u.run(c.paths...); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got error %v, want one that names %q", err, c.want)
			}
		})
	}
	if err := run([]string{"--nonsense"}, io.Discard); err == nil {
		t.Error("run accepted an unknown flag")
	}
}

// library returns a minimal ELF file that loads the given libraries.
func library(t *testing.T, loads ...string) []byte {
	t.Helper()
	const headerSize, entrySize = 64, 64
	names := []byte{0}
	var dynamic bytes.Buffer
	put := func(to io.Writer, value any) {
		if err := binary.Write(to, binary.LittleEndian, value); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range loads {
		put(&dynamic, elf.Dyn64{Tag: int64(elf.DT_NEEDED), Val: uint64(len(names))})
		names = append(append(names, name...), 0)
	}
	put(&dynamic, elf.Dyn64{Tag: int64(elf.DT_NULL)})
	sectionNames := []byte("\x00.dynstr\x00.dynamic\x00.shstrtab\x00")
	var file bytes.Buffer
	at := func(n int) uint64 { return uint64(headerSize + n) }
	put(&file, elf.Header64{
		Ident: [elf.EI_NIDENT]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)},
		Type:  uint16(elf.ET_DYN), Machine: uint16(elf.EM_X86_64), Version: uint32(elf.EV_CURRENT),
		Ehsize: headerSize, Shentsize: entrySize, Shnum: 4, Shstrndx: 3,
		Shoff: at(len(names) + dynamic.Len() + len(sectionNames)),
	})
	file.Write(names)
	file.Write(dynamic.Bytes())
	file.Write(sectionNames)
	put(&file, elf.Section64{})
	put(&file, elf.Section64{Name: 1, Type: uint32(elf.SHT_STRTAB), Off: at(0), Size: uint64(len(names)), Addralign: 1})
	put(&file, elf.Section64{Name: 9, Type: uint32(elf.SHT_DYNAMIC), Link: 1, Off: at(len(names)), Size: uint64(dynamic.Len()), Entsize: 16, Addralign: 1})
	put(&file, elf.Section64{Name: 18, Type: uint32(elf.SHT_STRTAB), Off: at(len(names) + dynamic.Len()), Size: uint64(len(sectionNames)), Addralign: 1})
	return file.Bytes()
}
