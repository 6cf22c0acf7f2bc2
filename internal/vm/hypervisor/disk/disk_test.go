package disk

import (
	"bufio"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestLock_HasOneHolder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk.img")
	first, err := Acquire(path)
	must(t, err)
	if _, err := Acquire(path); !errors.Is(err, ErrLocked) {
		t.Errorf("second holder: %v, want ErrLocked", err)
	}
	must(t, first.Release())
	second, err := Acquire(path)
	must(t, err)
	must(t, second.Release())
	must(t, (*Lock)(nil).Release())
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the lock created the disk: %v", err)
	}
}

// If this environment variable is set, the test binary holds a lock until it is killed.
const holdVariable = "MILLWRIGHT_TEST_HOLD_LOCK"

// held is the lock of that process. A local variable could be garbage-collected while the process waits.
var held *Lock

func TestMain(m *testing.M) {
	if path := os.Getenv(holdVariable); path != "" {
		var err error
		if held, err = Acquire(path); err != nil {
			os.Exit(1)
		}
		runtime.GC()
		_, _ = os.Stdout.WriteString("locked\n")
		select {}
	}
	os.Exit(m.Run())
}

func TestLock_IsReleasedWithProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk.img")
	holder := exec.Command(os.Args[0])
	holder.Env = append(os.Environ(), holdVariable+"="+path)
	output, err := holder.StdoutPipe()
	must(t, err)
	must(t, holder.Start())
	_, err = bufio.NewReader(output).ReadString('\n')
	must(t, err)
	if _, err := Acquire(path); !errors.Is(err, ErrLocked) {
		t.Errorf("while the process is running: %v, want ErrLocked", err)
	}
	must(t, holder.Process.Kill())
	_ = holder.Wait() // it was killed
	lock, err := Acquire(path)
	must(t, err)
	must(t, lock.Release())
}

func TestLock_NeedsDirectory(t *testing.T) {
	if _, err := Acquire(filepath.Join(t.TempDir(), "nothing", "disk.img")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error = %v, want ErrNotExist", err)
	}
}

func TestDisk_BlankIsSparse(t *testing.T) {
	d := Disk{Path: filepath.Join(t.TempDir(), "disk.img")}
	must(t, os.WriteFile(d.Path+".partial", []byte("from an earlier attempt"), 0o600))
	if exists, err := d.Exists(); exists || err != nil {
		t.Fatalf("exists = %v, %v before it was created", exists, err)
	}
	must(t, d.MakeBlank())
	info, err := os.Stat(d.Path)
	must(t, err)
	if info.Size() != DefaultBytes || info.Sys().(*syscall.Stat_t).Blocks != 0 || info.Mode() != 0o600 {
		t.Errorf("%d bytes in %d blocks with mode %s", info.Size(), info.Sys().(*syscall.Stat_t).Blocks, info.Mode())
	}
	if _, err := os.Stat(d.Path + ".partial"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a partial file remains: %v", err)
	}
}

func TestDisk_OtherFileTypesAreRejected(t *testing.T) {
	for _, path := range []string{t.TempDir(), "/dev/null"} {
		if _, err := (Disk{Path: path}).Exists(); !errors.Is(err, ErrNotFile) {
			t.Errorf("%s: error = %v, want ErrNotFile", path, err)
		}
	}
}

func TestDisk_Grow(t *testing.T) {
	d := Disk{Path: filepath.Join(t.TempDir(), "disk.img"), Bytes: 100}
	must(t, os.WriteFile(d.Path, []byte("content"), 0o600))
	for _, size := range []struct{ asked, want uint64 }{{100, 100}, {100, 100}, {50, 100}, {200, 200}} {
		d.Bytes = size.asked
		must(t, d.Grow())
		content, err := os.ReadFile(d.Path)
		must(t, err)
		if uint64(len(content)) != size.want || string(content[:7]) != "content" {
			t.Errorf("requested %d bytes, got %d bytes starting with %q", size.asked, len(content), content[:7])
		}
	}
}

// A link in the volume is neither the disk nor its lock, no matter what it points to.
func TestDisk_LinksAreNotFollowed(t *testing.T) {
	dir := t.TempDir()
	secret := filepath.Join(dir, "secret")
	must(t, os.WriteFile(secret, []byte("secret"), 0o600))
	volume := filepath.Join(dir, "volume")
	must(t, os.Mkdir(volume, 0o700))
	path := filepath.Join(volume, "disk.img")
	for name, target := range map[string]string{"disk.img": secret, "disk.img.lock": filepath.Join(dir, "made"), "disk.img.partial": secret} {
		must(t, os.Symlink(target, filepath.Join(volume, name)))
	}
	disk := Disk{Path: path, Bytes: 1 << 20}
	if exists, err := disk.Exists(); exists || !errors.Is(err, ErrNotFile) {
		t.Errorf("a link exists: %t, %v, want ErrNotFile", exists, err)
	}
	if err := disk.Grow(); err == nil {
		t.Error("the target of a link was enlarged")
	}
	if lock, err := Acquire(path); err == nil {
		t.Errorf("a link is locked: %v", lock.Release())
	}
	must(t, os.Remove(path))
	must(t, disk.MakeBlank())
	if content, err := os.ReadFile(secret); err != nil || string(content) != "secret" {
		t.Errorf("the target of the links contains %.20q, %d bytes (%v)", content, len(content), err)
	}
	if _, err := os.Lstat(filepath.Join(dir, "made")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file was created through the link of the lock: %v", err)
	}
}
