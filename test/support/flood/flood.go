// Package flood opens the connections of clients that never identify themselves.
package flood

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/millwright-dev/millwright/internal/connlimit"
)

// waitTimeout limits operations that take milliseconds.
const waitTimeout = 3 * time.Minute

// clients is the number of addresses of Past.
const clients = 5

// Past opens more silent connections to a port of 127.0.0.1 than it permits, from each of several addresses. It fails
// the test unless excess connections are closed in favor of later ones. The connections come from 127.0.0.2 and
// following addresses, so that others can use 127.0.0.1, and stay open until the end of the test.
func Past(t testing.TB, address string, limit int) {
	t.Helper()
	var first, last net.Conn
	begin := time.Now()
	for i := range clients {
		for range limit/2 + 1 {
			last = dial(t, address, net.IPv4(127, 0, 0, byte(2+i)))
			if first == nil {
				first = last
			}
		}
	}
	if stays(t, first, waitTimeout) {
		t.Fatal("the first connection stays open when there are too many")
	}
	if time.Since(begin) < connlimit.HandshakeTimeout {
		return // no timeout has closed it
	}
	// Without a limit, a timeout would have closed the first connection, and would close the last one soon after.
	if !stays(t, last, connlimit.HandshakeTimeout/2) {
		t.Error("the last connection was not open longer than the first one")
	}
}

// Hold opens silent connections to a port of 127.0.0.1, one from each of many addresses, and opens another one from the
// same address whenever one is closed, until the end of the test. It returns when each address has had a connection.
func Hold(t testing.TB, address string, addresses int) {
	t.Helper()
	for i := range addresses {
		from := net.IPv4(127, 1, byte(i/250), byte(1+i%250))
		conn := dial(t, address, from)
		go func() {
			for err := error(nil); err == nil; { // until the context of the test is canceled
				until(t.Context(), conn)
				conn, err = dialer(from).DialContext(t.Context(), "tcp4", address)
			}
		}()
	}
}

// until waits until a connection is closed or the context is canceled, and closes it.
func until(ctx context.Context, conn net.Conn) {
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	_, _ = io.Copy(io.Discard, conn)
}

func dialer(from net.IP) *net.Dialer { return &net.Dialer{LocalAddr: &net.TCPAddr{IP: from}} }

func dial(t testing.TB, address string, from net.IP) net.Conn {
	t.Helper()
	conn, err := dialer(from).DialContext(t.Context(), "tcp4", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func stays(t testing.TB, conn net.Conn, limit time.Duration) bool {
	t.Helper()
	if err := conn.SetDeadline(time.Now().Add(limit)); err != nil {
		t.Fatal(err)
	}
	_, err := io.Copy(io.Discard, conn)
	return errors.Is(err, os.ErrDeadlineExceeded)
}
