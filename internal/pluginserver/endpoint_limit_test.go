package pluginserver

import (
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"github.com/millwright-dev/millwright/internal/connlimit"
)

// TestEndpoint_LimitsConnectionsPerAddress: the connections of an address over the limit are closed in favor of later
// ones, and not those of another address.
func TestEndpoint_LimitsConnectionsPerAddress(t *testing.T) {
	endpoint, err := Loopback("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = endpoint.Close() })
	accepted := make(chan net.Conn, maxAnonymous)
	go func() {
		for conn, err := endpoint.listener.Accept(); err == nil; conn, err = endpoint.listener.Accept() {
			connlimit.Anonymous(conn) // as after the handshake
			accepted <- conn
		}
	}()
	dial := func(from string) net.Conn {
		t.Helper()
		dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
		conn, err := dialer.DialContext(t.Context(), "tcp", endpoint.listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	driver := dial("127.0.0.2")
	<-accepted
	first := dial("127.0.0.1")
	<-accepted
	for range maxAnonymous - 1 {
		dial("127.0.0.1")
		<-accepted
	}
	if err := first.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := first.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("a connection over the limit continues")
	}
	if err := driver.SetReadDeadline(time.Now().Add(time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if _, err := driver.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the connection of another address: %v", err)
	}
}
