// Package flood opens the connections of a client that never says who it is.
package flood

import (
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"
)

// waitTimeout bounds what takes milliseconds, or the time of a handshake that is not bounded.
const waitTimeout = 3 * time.Minute

// Past opens as many connections to a port of 127.0.0.1 as an address may have, and some more, and fails the test
// unless those are closed while the first is still open. They come from 127.0.0.2, so that others may have theirs
// from 127.0.0.1, and stay open until the test ends.
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
	// Without a limit it would have been the first to end.
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
