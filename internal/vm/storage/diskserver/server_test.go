package diskserver

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/disk"
	"github.com/millwright-dev/millwright/internal/vm/storage"
	"github.com/millwright-dev/millwright/test/support/smallfs"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newServer(t *testing.T) *Server {
	t.Helper()
	return newServerAt(t, filepath.Join(t.TempDir(), "disk.img"))
}

func newServerAt(t *testing.T, path string) *Server {
	t.Helper()
	must(t, os.WriteFile(path, make([]byte, 64<<10), 0o600))
	run, err := os.MkdirTemp("", "disks")
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(run) })
	s, err := New(Config{Disks: []Disk{{Name: "root", Path: path}}, Run: run})
	must(t, err)
	return s
}

// A process that hangs in the kernel cannot be killed, and may still write.
func TestRevoke_WaitsForDaemons(t *testing.T) {
	s := newServer(t)
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan struct{})
		s.exports[7] = &export{pod: "a", daemon: &daemon{token: 7, kill: func() {}, ended: ended}, sessions: map[io.Closer]struct{}{}}
		for range 2 { // a repeated call waits, too
			limited, cancel := context.WithCancel(t.Context())
			result := make(chan error, 1)
			go func() { result <- s.Revoke(limited, 7) }()
			synctest.Wait()
			cancel()
			if err := <-result; !errors.Is(err, context.Canceled) {
				t.Errorf("error = %v, want that the daemon does not terminate", err)
			}
		}
		if err := s.Open(t.Context(), 7, "a"); !errors.Is(err, storage.ErrRevoked) {
			t.Errorf("opening in the meantime: error = %v, want ErrRevoked", err)
		}
		close(ended)
		must(t, s.Revoke(t.Context(), 7))
		if len(s.exports) != 0 {
			t.Errorf("%d exports remain", len(s.exports))
		}
	})
	must(t, s.Close())
}

// A revocation that cannot be recorded must not take effect, because it would be forgotten after a restart.
func TestRevoke_IsStoredFirst(t *testing.T) {
	s := newServer(t)
	must(t, s.Open(t.Context(), 7, "a"))
	obstacle := s.recordPath() + nextSuffix
	must(t, os.Remove(obstacle))
	must(t, os.Mkdir(obstacle, 0o700))
	if err := s.Revoke(t.Context(), 7); err == nil {
		t.Error("a token was revoked without being recorded")
	}
	must(t, os.Remove(obstacle))
	must(t, s.Revoke(t.Context(), 7))
	stored, err := readRecord(s.recordPath())
	if err != nil || stored.Revoked != 7 {
		t.Errorf("stored = %+v, %v", stored, err)
	}
	must(t, s.Close())
}

// Without the lock, the next server could open a token before the daemons of the previous server have terminated.
func TestDaemon_KeepsDisksLocked(t *testing.T) {
	s := newServer(t)
	must(t, s.Open(t.Context(), 7, "a"))
	for _, lock := range s.locks { // as if the process had terminated, but not the daemon
		must(t, lock.Release())
	}
	s.locks = nil
	if _, err := New(s.config); !errors.Is(err, disk.ErrLocked) {
		t.Errorf("error = %v, want ErrLocked", err)
	}
	must(t, s.Close())
	next, err := New(s.config)
	must(t, err)
	must(t, next.Close())
}

// A host that crashed may have lost data whose write was acknowledged to hypervisors. Their guests must not
// continue.
func TestServer_HostRebootRevokesTokens(t *testing.T) {
	s := newServer(t)
	must(t, s.Open(t.Context(), 7, "a"))
	must(t, s.Close())
	same, err := New(s.config) // the process was restarted
	must(t, err)
	must(t, same.Open(t.Context(), 7, "a"))
	must(t, same.Close())
	config := s.config
	config.boot = "another"
	for range 2 {
		crashed, err := New(config)
		must(t, err)
		if err := crashed.Open(t.Context(), 7, "a"); !errors.Is(err, storage.ErrRevoked) {
			t.Errorf("error = %v, want ErrRevoked", err)
		}
		must(t, crashed.Open(t.Context(), 8, "b"))
		must(t, crashed.Close())
	}
}

// The disks of a VM may have filled their file system. It must still be possible to start the VM on another host.
func TestRevoke_FullFileSystem(t *testing.T) {
	t.Attr("fault", "The disk is full while a disk server records that a fencing token is revoked and that the next one is open")
	small := smallfs.New(t)
	s := newServerAt(t, small.Path("disk.img"))
	must(t, s.Open(t.Context(), 7, "a"))
	small.Fill(0)
	for token := storage.Token(7); token < 12; token++ {
		must(t, s.Revoke(t.Context(), token))
		must(t, s.Open(t.Context(), token+1, "a"))
	}
	stored, err := readRecord(s.recordPath())
	if want := (record{Revoked: 11, Opened: 12, Boot: s.config.boot}); err != nil || stored != want {
		t.Errorf("stored = %+v, %v; want %+v", stored, err, want)
	}
	must(t, s.Close())
	t.Attr("outcome", "The record is written, because its space is reserved")
}

// A hypervisor that was compromised by its guest uses at most its share of the server.
func TestServer_LimitsSessions(t *testing.T) {
	s := newServer(t)
	must(t, s.Open(t.Context(), 7, "a"))
	must(t, s.Open(t.Context(), 8, "b"))
	var last io.Closer
	for range maxSessions {
		last = &os.File{} // any file that can be closed
		_, err := s.join(7, "a", last)
		must(t, err)
	}
	if _, err := s.join(7, "a", &os.File{}); !errors.Is(err, errTooMany) {
		t.Errorf("error = %v, want errTooMany", err)
	}
	_, err := s.join(8, "b", &os.File{})
	must(t, err)
	s.leave(7, last)
	_, err = s.join(7, "a", &os.File{})
	must(t, err)
	must(t, s.Close())
}
