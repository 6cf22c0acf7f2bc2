package directory

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func TestWriteFile_LeavesNoTemporaryFile(t *testing.T) {
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

// TestWriteFile_IsDurable checks that the content is synced before the file is renamed, and that the rename is
// synced after that. Otherwise the file could be empty after a power failure.
func TestWriteFile_IsDurable(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "x")
	if err := WriteFile(path, []byte("old")); err != nil {
		t.Fatal(err)
	}
	var steps []string
	err := writeFile(path, []byte("new"), func(file *os.File) error {
		content, err := os.ReadFile(path)
		written, _ := os.ReadFile(file.Name()) // empty for a directory
		steps = append(steps, fmt.Sprintf("directory %t, contains %q, path has %q", file.Name() == dir, written, content))
		return err
	})
	want := []string{`directory false, contains "new", path has "old"`, `directory true, contains "", path has "new"`}
	if err != nil || !slices.Equal(steps, want) {
		t.Errorf("synced %q (%v), want %q", steps, err, want)
	}
	full := errors.New("no space")
	if err := writeFile(path, []byte("newer"), func(*os.File) error { return full }); !errors.Is(err, full) {
		t.Errorf("got %v, want %v", err, full)
	}
	if content, err := os.ReadFile(path); string(content) != "new" {
		t.Errorf("after a failed write the file is %q (%v)", content, err)
	}
}

func TestLock_IsExclusive(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	for range 2 { // it can be locked again after its release
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
		t.Errorf("a lock in no directory: %v", err)
	}
}

// TestLock_RetriesShortConflicts checks that a short-lived lock, held by a process between fork and exec or by IsLocked, does
// not cause a failure.
func TestLock_RetriesShortConflicts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "lock")
		first, err := LockWithRetry(path)
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if _, err := LockWithRetry(path); !errors.Is(err, ErrLocked) || time.Since(began) < retryLimit {
			t.Errorf("error %v after %v, want %v", err, time.Since(began), ErrLocked)
		}
		second := make(chan error)
		go func() {
			lock, err := LockWithRetry(path)
			second <- errors.Join(err, lock.Close()) // nil after an error
		}()
		synctest.Wait() // it retries
		if err := errors.Join(first.Close(), <-second); err != nil {
			t.Errorf("after the first was released: %v", err)
		}
	})
}
