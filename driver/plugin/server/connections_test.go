package server

import (
	"errors"
	"io"
	"net"
	"testing"
)

// TestAnAddressThatFloodsThePort: what is over the bounds is closed at once, and others are let in.
func TestAnAddressThatFloodsThePort(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := limit(inner, 3, 2)
	t.Cleanup(func() { _ = l.Close() })
	accepted := make(chan net.Conn, 8)
	go func() {
		for conn, err := l.Accept(); err == nil; conn, err = l.Accept() {
			accepted <- conn
		}
	}()
	dial := func(from string) net.Conn {
		t.Helper()
		dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
		conn, err := dialer.DialContext(t.Context(), "tcp", inner.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	refused := func(from string) {
		t.Helper()
		if _, err := dial(from).Read(make([]byte, 1)); err == nil {
			t.Errorf("a connection of %s goes on: %v", from, err)
		}
	}
	dial("127.0.0.1")
	first := <-accepted
	dial("127.0.0.1")
	second := <-accepted
	refused("127.0.0.1")
	dial("127.0.0.2")
	third := <-accepted
	refused("127.0.0.3") // there are three
	for _, conn := range []net.Conn{first, first, third} {
		if err := conn.Close(); err != nil && !errors.Is(err, net.ErrClosed) && !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
	}
	dial("127.0.0.1")
	<-accepted
	refused("127.0.0.1") // closing twice makes no room for two
	if err := second.Close(); err != nil {
		t.Fatal(err)
	}
	dial("127.0.0.1")
	<-accepted
}
