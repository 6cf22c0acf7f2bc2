package folder

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestWriteFileLeavesOneFile(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	path := filepath.Join(dir, "x")
	for _, content := range []string{"one", "two"} {
		if err := WriteFile(path, []byte(content)); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != content {
			t.Errorf("want %q, got %q (%v)", content, got, err)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Fatalf("want one file, got %v (%v)", entries, err)
	}
	if info, err := entries[0].Info(); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file is %v (%v)", info, err)
	}
}

func TestLockIsForOne(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	for range 2 { // it may be taken again once it is released
		first, err := Lock(path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Lock(path); !errors.Is(err, ErrLocked) {
			t.Errorf("a second lock: %v", err)
		}
		if err := first.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Lock(filepath.Join(path, "none", "lock")); err == nil || errors.Is(err, ErrLocked) {
		t.Errorf("a lock in no folder: %v", err)
	}
}
