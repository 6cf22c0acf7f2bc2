// Package flood opens the connections of a client that never identifies itself.
package flood

import (
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"
)

// waitTimeout limits operations that take milliseconds, or the duration of an unlimited handshake.
const waitTimeout = 3 * time.Minute

// Past opens more connections to a port of 127.0.0.1 than an address is permitted. It fails the test unless the
// excess connections are closed while the first one is still open. The connections come from 127.0.0.2, so that
// others can use 127.0.0.1, and stay open until the end of the test.
func Past(t testing.TB, address string, limit int) {
	t.Helper()
	from := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
	var open []net.Conn
	for range limit + 5 {
		conn, err := from.DialContext(t.Context(), "tcp4", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		open = append(open, conn)
	}
	for _, conn := range open[limit:] {
		if stays(t, conn, waitTimeout) {
			t.Fatal("a connection over the limit stays open")
		}
	}
	// Without a limit, the first connection would have been closed first.
	if !stays(t, open[0], time.Millisecond) {
		t.Error("the first connection was closed before those over the limit, or with them")
	}
}

func stays(t testing.TB, conn net.Conn, limit time.Duration) bool {
	t.Helper()
	if err := conn.SetDeadline(time.Now().Add(limit)); err != nil {
		t.Fatal(err)
	}
	_, err := io.Copy(io.Discard, conn)
	return errors.Is(err, os.ErrDeadlineExceeded)
}
