package pluginserver

import (
	"net"
	"testing"
)

// TestEndpoint_LimitsConnectionsPerAddress: connections over the limit of an address are closed immediately, and other
// addresses may still connect.
func TestEndpoint_LimitsConnectionsPerAddress(t *testing.T) {
	endpoint, err := Loopback("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = endpoint.Close() })
	accepted := make(chan net.Conn, maxConnections)
	go func() {
		for conn, err := endpoint.listener.Accept(); err == nil; conn, err = endpoint.listener.Accept() {
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
	for range maxPerAddress {
		dial("127.0.0.1")
		<-accepted
	}
	if _, err := dial("127.0.0.1").Read(make([]byte, 1)); err == nil {
		t.Error("a connection over the limit of its address continues")
	}
	dial("127.0.0.2")
	<-accepted
}
