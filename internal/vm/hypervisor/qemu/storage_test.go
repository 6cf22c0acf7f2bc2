package qemu

import (
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/millwright-dev/millwright/test/support/tier"
)

var writer = bootSector("writer")

const (
	writerBanner = "boot\n"
	writerDone   = "done\n"
)

// sparse returns a machine with a disk of 8 MiB that does not occupy any space yet.
func sparse(t *testing.T, dir string, guest []byte) Config {
	t.Helper()
	config := machineAt(t, filepath.Join(dir, "root.raw"), guest)
	must(t, os.Truncate(config.Disks.Root.Path, 0))
	must(t, os.WriteFile(config.Disks.Root.Path, guest, 0o600))
	must(t, os.Truncate(config.Disks.Root.Path, 8<<20))
	return config
}

// A failure of the storage stops the guest, which later continues as if nothing had happened. An error that
// reached the guest could destroy its file system. For a full disk, see package hypervisor.
func TestGuest_WaitsForStorage(t *testing.T) {
	tier.All(t)
	signal.Ignore(syscall.SIGXFSZ) // QEMU inherits this, and gets an error instead
	t.Cleanup(func() { signal.Reset(syscall.SIGXFSZ) })
	p := start(t, sparse(t, t.TempDir(), writer))
	console := attach(t, p)
	limitFiles := func(bytes uint64) {
		t.Helper()
		must(t, unix.Prlimit(p.PID(), unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: bytes, Max: unix.RLIM_INFINITY}, nil))
	}
	limitFiles(2 << 20)
	must(t, p.Cont(bounded(t)))
	console.until(writerBanner)
	if state := awaitStatus(t, p, StorageFailed); state.Failure.NoSpace || state.Failure.Reason == "" {
		t.Errorf("failure = %+v", state.Failure)
	}
	limitFiles(unix.RLIM_INFINITY)
	must(t, p.Cont(bounded(t)))
	if dots := string(console.until(writerDone)); dots != strings.Repeat(".", 96) {
		t.Errorf("the guest wrote %q", dots)
	}
}

// awaitStatus waits until the status of the machine changes to the given one.
func awaitStatus(t *testing.T, p *Process, want Status) State {
	t.Helper()
	late := bounded(t)
	for {
		state, err := p.State(late)
		must(t, err)
		if state.Status == want {
			return state
		}
		select {
		case <-p.Changed():
		case <-late.Done():
			t.Fatalf("state = %+v, want %s", state, want)
		}
	}
}
