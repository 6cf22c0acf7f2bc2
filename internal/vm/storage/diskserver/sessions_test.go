package diskserver_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/disk"
	"github.com/millwright-dev/millwright/internal/vm/identity"
	"github.com/millwright-dev/millwright/internal/vm/storage"
	"github.com/millwright-dev/millwright/internal/vm/storage/diskserver"
	"github.com/millwright-dev/millwright/internal/vm/storage/session"
	"github.com/millwright-dev/millwright/test/support/flood"
)

// begin starts a session and reads the beginning of NBD, which shows that it reaches a storage daemon.
func begin(t *testing.T, c session.Carrier) (net.Conn, error) {
	t.Helper()
	conn, err := c.Begin(bounded(t))
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { _ = conn.Close() })
	greeting := make([]byte, 18) // two magic numbers, and flags
	if _, err := io.ReadFull(conn, greeting); err != nil || string(greeting[:8]) != "NBDMAGIC" {
		t.Fatalf("the session starts with %q, %v", greeting, err)
	}
	return conn, nil
}

func TestSession_RequiresTokenOfPod(t *testing.T) {
	i := newInstallation(t)
	s := i.serve(newDisk(t, nil))
	s.open(5, first)
	must(t, s.volume().Revoke(bounded(t), 5))
	s.open(7, first)
	s.open(9, second)
	s.open(9, second) // again
	foreign := newInstallation(t)
	elsewhere := &site{installation: foreign, at: s.at}
	other := identity.Peer{Namespace: "pool", VM: "vm-2", Pod: first}
	anyError := errors.New("any")
	for name, test := range map[string]struct {
		carrier session.Carrier
		want    error
	}{
		"its own token":               {s.carrier(peer(first), 7), nil},
		"the other holder":            {s.carrier(peer(second), 9), nil},
		"the token of another Pod":    {s.carrier(peer(first), 9), storage.ErrNotOpen},
		"an old token of another Pod": {s.carrier(peer(second), 7), storage.ErrNotOpen},
		"an invented token":           {s.carrier(peer(first), 1<<63), storage.ErrNotOpen},
		"a revoked token":             {s.carrier(peer(first), 5), storage.ErrRevoked},
		"a token below a revoked one": {s.carrier(peer(first), 4), storage.ErrRevoked},
		"none":                        {s.carrier(peer(first), 0), storage.ErrRevoked},
		"a Pod without a token":       {s.carrier(peer("vm-1-ccc"), 7), storage.ErrNotOpen},
		"a Pod of another VM":         {s.carrier(other, 7), anyError},
		"the controller":              {s.carrier(identity.Controller(), 7), anyError},
		"another installation":        {elsewhere.carrier(peer(first), 7), anyError},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := begin(t, test.carrier)
			switch {
			case test.want == anyError && (err == nil || errors.Is(err, storage.ErrNotOpen) || errors.Is(err, storage.ErrRevoked)):
				t.Errorf("the handshake succeeded: %v", err)
			case test.want != anyError && !errors.Is(err, test.want):
				t.Errorf("error = %v, want %v", err, test.want)
			}
		})
	}
}

// awaitCut waits until a session is closed. It reads pending data first.
func awaitCut(t *testing.T, conn net.Conn) {
	t.Helper()
	defer context.AfterFunc(bounded(t), func() { _ = conn.Close() })()
	_, err := io.Copy(io.Discard, conn)
	if errors.Is(err, net.ErrClosed) {
		t.Error("the session was not cut")
	}
}

func TestRevoke_CutsOnlySessionsOfOldTokens(t *testing.T) {
	s := newInstallation(t).serve(newDisk(t, nil))
	s.open(7, first)
	s.open(9, second) // like the target of a migration
	old, err := begin(t, s.carrier(peer(first), 7))
	must(t, err)
	_, err = begin(t, s.carrier(peer(second), 9))
	must(t, err)
	must(t, s.volume().Revoke(bounded(t), 8))
	awaitCut(t, old)
	qemuIO(t, s.carrier(peer(second), 9), "root", "write -P 9 0 4k")
	if _, err = begin(t, s.carrier(peer(first), 7)); !errors.Is(err, storage.ErrRevoked) {
		t.Errorf("error = %v, want ErrRevoked", err)
	}
	for _, token := range []storage.Token{7, 8} {
		if _, err := s.volume().Open(bounded(t), token, first); !errors.Is(err, storage.ErrRevoked) {
			t.Errorf("opening with token %d: error = %v, want ErrRevoked", token, err)
		}
	}
}

func TestRevoke_OutlivesServer(t *testing.T) {
	i := newInstallation(t)
	path := newDisk(t, nil)
	s := i.serve(path)
	s.open(7, first)
	must(t, s.volume().Revoke(bounded(t), 7))
	s.open(9, second)
	s.stop()
	s = i.serve(path)
	if _, err := s.volume().Open(bounded(t), 7, first); !errors.Is(err, storage.ErrRevoked) {
		t.Errorf("opening with a revoked token: error = %v, want ErrRevoked", err)
	}
	if _, err := begin(t, s.carrier(peer(first), 7)); !errors.Is(err, storage.ErrRevoked) {
		t.Errorf("starting a session with it: error = %v, want ErrRevoked", err)
	}
	if _, err := begin(t, s.carrier(peer(second), 9)); !errors.Is(err, storage.ErrNotOpen) {
		t.Errorf("a token that is not open again: error = %v, want ErrNotOpen", err)
	}
	must(t, s.volume().Revoke(bounded(t), 3)) // repeated
	s.open(9, second)
	_, err := begin(t, s.carrier(peer(second), 9))
	must(t, err)
}

func TestServer_OnlyControllerOpensAndRevokes(t *testing.T) {
	s := newInstallation(t).serve(newDisk(t, nil))
	s.open(7, first)
	_, err := s.volume().Open(bounded(t), 7, second)
	if !errors.Is(err, storage.ErrOtherHolder) {
		t.Errorf("one token for two Pods: error = %v, want ErrOtherHolder", err)
	}
	for _, caller := range []identity.Peer{peer(first), peer(serverPod)} {
		_, err := s.as(caller).Open(bounded(t), 8, first)
		for _, err := range []error{err, s.as(caller).Revoke(bounded(t), 7)} {
			if status.Code(err) != codes.PermissionDenied {
				t.Errorf("%s: error = %v, want PERMISSION_DENIED", caller, err)
			}
		}
	}
	_, err = s.volume().Open(bounded(t), 0, first)
	for _, err := range []error{err, s.volume().Revoke(bounded(t), 0)} {
		if !errors.Is(err, storage.ErrNoToken) {
			t.Errorf("error = %v, want ErrNoToken", err)
		}
	}
	_, err = begin(t, s.carrier(peer(first), 7))
	must(t, err)
}

// qemuIO runs a command of qemu-io on an export through a session.
func qemuIO(t *testing.T, c session.Carrier, export, command string) {
	t.Helper()
	socket := filepath.Join(directory(t), "disk")
	listener, err := net.Listen("unix", socket)
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	carried := make(chan struct{})
	go func() {
		defer close(carried)
		c.Carry(ctx, listener)
	}()
	output, err := exec.CommandContext(bounded(t), "qemu-io", "-c", command, "-c", "flush",
		"--image-opts", "driver=nbd,server.type=unix,server.path="+socket+",export="+export).CombinedOutput()
	if err != nil {
		t.Errorf("%s on %s: %v: %s", command, export, err, output)
	}
	cancel()
	<-carried
}

func TestServer_ServesAllDisks(t *testing.T) {
	path, data := newDisk(t, nil), newDisk(t, nil)
	s := newInstallation(t).serve(path, diskserver.Disk{Name: "logs", Path: data})
	s.open(7, first)
	qemuIO(t, s.carrier(peer(first), 7), "root", "write -P 1 0 512")
	qemuIO(t, s.carrier(peer(first), 7), "logs", "write -P 2 0 512")
	for path, want := range map[string]byte{path: 1, data: 2} {
		content, err := os.ReadFile(path)
		must(t, err)
		if !bytes.Equal(content[:512], bytes.Repeat([]byte{want}, 512)) || content[512] != 0 {
			t.Errorf("%s starts with %d, want %d", path, content[0], want)
		}
	}
}

func TestServer_DisksThatCannotBeServed(t *testing.T) {
	i := newInstallation(t)
	path := newDisk(t, nil)
	lock, err := disk.Acquire(path)
	must(t, err)
	config := diskserver.Config{Disks: []diskserver.Disk{{Name: "root", Path: path}}, Run: directory(t)}
	if _, err = diskserver.New(config); !errors.Is(err, disk.ErrLocked) {
		t.Errorf("a disk of another process: error = %v, want ErrLocked", err)
	}
	must(t, lock.Release())
	for _, content := range []string{"", "{", "{}", `{"revokedUpToToken": -1}`} {
		must(t, os.WriteFile(path+".fence", []byte(content), 0o600))
		if _, err = diskserver.New(config); err == nil {
			t.Errorf("a server read revoked tokens from the record %q", content)
		}
	}
	must(t, os.Remove(path+".fence"))
	s := i.serve(path)
	must(t, os.Remove(path))
	if _, err := s.volume().Open(bounded(t), 7, first); err == nil {
		t.Error("opened a disk that does not exist")
	}
	must(t, os.WriteFile(path, make([]byte, 1<<20), 0o600))
	s.open(7, first) // the daemon has terminated
	_, err = begin(t, s.carrier(peer(first), 7))
	must(t, err)
}

// Clients that connect but send nothing do not block the port for hypervisors.
func TestServer_IdleClientsDoNotBlock(t *testing.T) {
	s := newInstallation(t).serve(newDisk(t, nil))
	s.open(7, first)
	flood.Past(t, s.at.Address, 128)
	_, err := begin(t, s.carrier(peer(first), 7))
	must(t, err)
}
