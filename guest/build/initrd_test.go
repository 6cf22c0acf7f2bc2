package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/u-root/u-root/pkg/cpio"
)

// entry contains the fields of a record that the kernel uses.
type entry struct {
	Name         string
	Mode         uint64
	Major, Minor uint64
	Content      string
}

func TestWriteArchive(t *testing.T) {
	records := []cpio.Record{
		cpio.Directory("dev", 0o755),
		cpio.CharDev("dev/console", 0o600, 5, 1),
		cpio.StaticFile("init", "program", 0o755),
		cpio.StaticFile("empty", "", 0o644),
	}
	path, again := filepath.Join(t.TempDir(), "first"), filepath.Join(t.TempDir(), "second")
	for _, path := range []string{path, again} {
		if err := writeArchive(path, records); err != nil {
			t.Fatal(err)
		}
	}
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.HasPrefix(content, []byte("070701")) {
		t.Errorf("the archive starts with %q", content[:6])
	}
	if second, err := os.ReadFile(again); err != nil || !bytes.Equal(content, second) {
		t.Errorf("the same files resulted in different archives (%v)", err)
	}
	var got []entry
	err = cpio.ForEachRecord(cpio.Newc.Reader(bytes.NewReader(content)), func(r cpio.Record) error {
		text := make([]byte, r.FileSize)
		if _, err := r.ReadAt(text, 0); err != nil && r.FileSize > 0 {
			return err
		}
		if r.MTime != 0 || r.UID != 0 || r.GID != 0 {
			t.Errorf("%s has a time or an owner: %+v", r.Name, r.Info)
		}
		got = append(got, entry{r.Name, r.Mode, r.Rmajor, r.Rminor, string(text)})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []entry{
		{Name: "dev", Mode: 0o040755},
		{Name: "dev/console", Mode: 0o020600, Major: 5, Minor: 1},
		{Name: "init", Mode: 0o100755, Content: "program"},
		{Name: "empty", Mode: 0o100644},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}
