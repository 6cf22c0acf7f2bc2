package loadbalancer

import (
	"context"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"
)

// TestForward_HalfClose checks that a client can close its sending side and still receive the response.
func TestForward_HalfClose(t *testing.T) {
	servers, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer servers.Close()
	go func() {
		for {
			conn, err := servers.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				if all, err := io.ReadAll(conn); err == nil {
					_, _ = io.WriteString(conn, strings.ToUpper(string(all)))
				}
			}()
		}
	}()
	checked := make(chan struct{}, 1)
	b := New(Options{
		Dial: func(ctx context.Context, address string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", address)
		},
		Check:   func(context.Context, net.Conn) (Health, error) { return Ready, nil },
		Changed: func() { checked <- struct{}{} }, Log: slog.New(slog.DiscardHandler),
	})
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- b.Serve(ctx, listener) }()
	b.SetServers([]string{servers.Addr().String()})
	<-checked

	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "hello"); err != nil {
		t.Fatal(err)
	}
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if response, err := io.ReadAll(conn); err != nil || string(response) != "HELLO" {
		t.Errorf("the response is %q, %v", response, err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// halfConn is a connection that can be half-closed.
type halfConn struct {
	net.Conn
	until time.Time
}

func (c *halfConn) CloseWrite() error { return nil }

func (c *halfConn) SetReadDeadline(until time.Time) error {
	c.until = until
	return nil
}

// TestForward_HalfClosedConnectionTimesOut checks that a half-closed connection does not stay open if the peer
// vanishes.
func TestForward_HalfClosedConnectionTimesOut(t *testing.T) {
	ended, end := net.Pipe()
	_ = end.Close()
	other := &halfConn{}
	copyTo(other, ended)
	if left := time.Until(other.until); left <= 0 || left > halfClosedLimit {
		t.Errorf("the other half has %v", left)
	}
}
