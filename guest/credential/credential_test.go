package credential

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var example = Credential{
	Key: []byte("key"), Certificate: []byte("certificate"), Authority: []byte("authority"),
	Server: "https://10.77.0.2:16443", NodeName: "one",
}

// blank returns a disk of 1 MiB with the given bytes at the given offset.
func blank(t *testing.T, at int, content ...byte) Store {
	t.Helper()
	disk := make([]byte, 1<<20)
	copy(disk[at:], content)
	path := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(path, disk, 0o600); err != nil {
		t.Fatal(err)
	}
	return Store{path}
}

func TestSave_IsLoaded(t *testing.T) {
	disk := blank(t, 0)
	if _, err := disk.Load(); !errors.Is(err, ErrNone) {
		t.Fatalf("Load of a blank disk = %v, want ErrNone", err)
	}
	for _, name := range []string{"one", "two"} {
		example.NodeName = name
		if err := disk.Save(example); err != nil {
			t.Fatal(err)
		}
		got, err := disk.Load()
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(example, got); diff != "" {
			t.Errorf("(-want +got)\n%s", diff)
		}
	}
}

func TestSave_WritesOnlyCredential(t *testing.T) {
	disk := blank(t, 0)
	if err := disk.Save(example); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(disk.Path)
	if err != nil {
		t.Fatal(err)
	}
	clear(content[Offset : Offset+Size])
	if len(content) != 1<<20 || len(bytes.Trim(content, "\x00")) != 0 {
		t.Error("Save wrote outside the area")
	}
}

// TestLoad_DetectsCorruption flips each byte that is read.
func TestLoad_DetectsCorruption(t *testing.T) {
	disk := blank(t, 0)
	if err := disk.Save(example); err != nil {
		t.Fatal(err)
	}
	good, err := os.ReadFile(disk.Path)
	if err != nil {
		t.Fatal(err)
	}
	end := Offset + bytes.IndexByte(good[Offset+headerSize:], 0) + headerSize
	for at := Offset; at < end; at++ {
		damaged := bytes.Clone(good)
		damaged[at] ^= 0x40
		_, err := load(bytes.NewReader(damaged))
		want := ErrDamaged
		if at < Offset+len(magic) {
			want = ErrForeign
		}
		if !errors.Is(err, want) {
			t.Fatalf("Load with byte %d damaged = %v, want %v", at-Offset, err, want)
		}
	}
}

func TestSave_ReplacesCorruptedCredential(t *testing.T) {
	disk := blank(t, Offset, append(magic, 0xff, 0xff, 0xff, 0xff)...)
	if _, err := disk.Load(); !errors.Is(err, ErrDamaged) {
		t.Fatalf("Load = %v, want ErrDamaged", err)
	}
	if err := disk.Save(example); err != nil {
		t.Fatal(err)
	}
	if _, err := disk.Load(); err != nil {
		t.Error(err)
	}
}

func TestSave_KeepsOtherData(t *testing.T) {
	for name, at := range map[string]int{"AtTheBegin": Offset, "AtTheEnd": Offset + Size - 1} {
		t.Run(name, func(t *testing.T) {
			disk := blank(t, at, 'x')
			if err := disk.Save(example); !errors.Is(err, ErrForeign) {
				t.Errorf("Save = %v, want ErrForeign", err)
			}
			content, err := os.ReadFile(disk.Path)
			if err != nil {
				t.Fatal(err)
			}
			if content[at] != 'x' || len(bytes.Trim(content, "\x00")) != 1 {
				t.Error("the disk was written")
			}
		})
	}
}

func TestSave_RejectsTooSmallDisk(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(path, make([]byte, Offset+1), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := (Store{path}).Save(example); !errors.Is(err, ErrForeign) {
		t.Errorf("Save = %v, want ErrForeign", err)
	}
	if err := (Store{filepath.Join(t.TempDir(), "none")}).Save(example); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Save without a disk = %v, want ErrNotExist", err)
	}
}
