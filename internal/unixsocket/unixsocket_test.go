package unixsocket_test

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millwright-dev/millwright/internal/unixsocket"
)

// TestListen_IsPrivateWithAnyPathLength checks the mode of a socket with a long path, that it replaces an earlier file, and
// that clients can connect.
func TestListen_IsPrivateWithAnyPathLength(t *testing.T) {
	path := filepath.Join(t.TempDir(), strings.Repeat("long", 50), "x.sock")
	if _, err := unixsocket.Listen(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a directory: %v", err)
	}
	if err := errors.Join(os.Mkdir(filepath.Dir(path), 0o755), os.WriteFile(path, nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second one finds the socket of the first
		listener, err := unixsocket.Listen(path)
		if err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(path); err != nil || info.Mode() != os.ModeSocket|0o600 {
			t.Errorf("mode %v, %v", info.Mode(), err)
		}
		go func() {
			if conn, err := listener.Accept(); err == nil {
				_, _ = io.WriteString(conn, "hello")
				_ = conn.Close()
			}
		}()
		conn, err := unixsocket.Dial(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(conn); err != nil || string(got) != "hello" {
			t.Errorf("received %q, %v", got, err)
		}
		if err := errors.Join(conn.Close(), listener.Close()); err != nil {
			t.Error(err)
		}
	}
}

// TestDial_WithoutSocket checks the error.
func TestDial_WithoutSocket(t *testing.T) {
	if _, err := unixsocket.Dial(t.Context(), filepath.Join(t.TempDir(), "x.sock")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v", err)
	}
}
