package loadbalancer

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/millwright-dev/millwright/internal/local/egress"
)

// listen opens a Unix socket in a directory with a short path.
func listen(t *testing.T) (net.Listener, string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "lb")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	socket := filepath.Join(dir, "egress.sock")
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	return listener, socket
}

// TestVia uses a socket like that of "up", which provides the connections to kube-apiserver.
func TestVia(t *testing.T) {
	listener, socket := listen(t)
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error)
	go func() {
		served <- egress.Serve(ctx, listener, func(_ context.Context, address string) (net.Conn, error) {
			if address != "10.77.0.9:6443" {
				return nil, errors.New("no such guest")
			}
			here, there := net.Pipe()
			go func() {
				defer there.Close()
				_, _ = io.Copy(there, there)
			}()
			return here, nil
		})
	}()
	conn, err := via(socket)(t.Context(), "10.77.0.9:6443")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, "hello"); err != nil {
		t.Fatal(err)
	}
	response := make([]byte, 5)
	if _, err := io.ReadFull(conn, response); err != nil || string(response) != "hello" {
		t.Errorf("the response is %q, %v", response, err)
	}
	_ = conn.Close()
	if _, err := via(socket)(t.Context(), "10.77.0.1:22"); err == nil || !strings.Contains(err.Error(), "no such guest") {
		t.Errorf("what is refused: %v", err)
	}
	for _, address := range []string{"127.0.0.1:10250", "169.254.169.254:80", "[64:ff9b::7f00:1]:6443", "machine.example:6443"} {
		if _, err := via(socket)(t.Context(), address); err == nil || strings.Contains(err.Error(), "no such guest") {
			t.Errorf("%s was requested: %v", address, err)
		}
	}
	cancel()
	if err := <-served; err != nil {
		t.Error(err)
	}
	if _, err := via(socket)(t.Context(), "10.77.0.9:6443"); err == nil {
		t.Error("it connects without a server")
	}
}

// TestVia_ToleratesInvalidServer checks that a peer that sends an invalid response, or none, blocks nothing.
func TestVia_ToleratesInvalidServer(t *testing.T) {
	for name, tt := range map[string]struct {
		response string
		limit    time.Duration
	}{
		"nonsense": {"SSH-2.0-x\r\n\r\n", 5 * time.Minute},
		"silence":  {"", 100 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			listener, socket := listen(t)
			go func() {
				conn, err := listener.Accept()
				if err != nil {
					return
				}
				_, _ = io.WriteString(conn, tt.response)
				_, _ = io.Copy(io.Discard, conn)
			}()
			ctx, cancel := context.WithTimeout(t.Context(), tt.limit)
			defer cancel()
			if _, err := via(socket)(ctx, "10.77.0.9:6443"); err == nil || errors.Is(err, context.DeadlineExceeded) != (tt.response == "") {
				t.Errorf("the error is %v", err)
			}
		})
	}
}
