package connlimit

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

func TestCounter_Limits(t *testing.T) {
	c := NewCounter(3, 2)
	first, _ := c.Take("a")
	c.Take("a")
	if _, ok := c.Take("a"); ok {
		t.Error("a third of one key")
	}
	c.Take("b")
	if _, ok := c.Take("b"); ok {
		t.Error("a fourth in total")
	}
	first()
	first() // a connection may be closed twice
	if _, ok := c.Take("a"); !ok {
		t.Error("what was released cannot be taken")
	}
	if _, ok := c.Take("b"); ok {
		t.Error("releasing twice freed capacity twice")
	}
}

func TestOrigin(t *testing.T) {
	of := func(address string) Origin { return OriginOf(&net.TCPAddr{IP: net.ParseIP(address), Port: 1}) }
	if of("192.0.2.1") == of("192.0.2.2") || of("192.0.2.1") != of("::ffff:192.0.2.1") {
		t.Error("IPv4 addresses are not distinguished")
	}
	if of("2001:db8::1") != of("2001:db8::2") || of("2001:db8::1") == of("2001:db8:0:1::1") {
		t.Error("an IPv6 network is not one origin")
	}
}

// pipes is a listener whose clients all have the same address.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	conn, ok := <-p
	if !ok {
		return nil, net.ErrClosed
	}
	return conn, nil
}
func (p pipes) Close() error { close(p); return nil }
func (pipes) Addr() net.Addr { return nil }

// TestListener_ReservesCapacityForUnknownPeers checks that known and closed connections leave capacity to others.
func TestListener_ReservesCapacityForUnknownPeers(t *testing.T) {
	for name, leave := range map[string]func(*testing.T, net.Conn){
		"closed": func(t *testing.T, conn net.Conn) { conn.Close() },
		"known":  func(_ *testing.T, conn net.Conn) { Known(conn) },
		"known by what TLS has made of it": func(_ *testing.T, conn net.Conn) {
			Known(tls.Server(conn, &tls.Config{MinVersion: tls.VersionTLS13}))
		},
		"known by its credentials": func(t *testing.T, conn net.Conn) {
			if _, _, err := Credentials(shaking{}).Clone().ServerHandshake(conn); err != nil {
				t.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				clients, accepted := make(pipes), make(chan net.Conn, 8)
				listener := Listen(clients, 2, 8)
				go func() {
					defer close(accepted)
					for {
						conn, err := listener.Accept()
						if err != nil {
							return
						}
						accepted <- conn
					}
				}()
				open := func() net.Conn {
					ours, theirs := net.Pipe()
					clients <- theirs
					synctest.Wait()
					return ours
				}
				open()
				open()
				if _, err := open().Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
					t.Errorf("a third one: %v, want EOF", err)
				}
				leave(t, <-accepted)
				open()
				if got := len(accepted); got != 2 {
					t.Errorf("%d are accepted, want the second and the fourth", got)
				}
				listener.Close()
				synctest.Wait()
				for conn := range accepted {
					conn.Close()
				}
			})
		})
	}
}

// TestListener_FailedHandshakeIsNotKnown checks that a failed handshake does not make a peer known.
func TestListener_FailedHandshakeIsNotKnown(t *testing.T) {
	count := NewCounter(1, 1)
	release, _ := count.Take(nil)
	conn := &Counted{nil, release}
	if _, _, err := Credentials(shaking{err: io.ErrUnexpectedEOF}).ServerHandshake(conn); err == nil {
		t.Fatal("no error")
	}
	if _, ok := count.Take(nil); ok {
		t.Error("it does not count any more")
	}
}

// shaking is a handshake with the given result.
type shaking struct {
	credentials.TransportCredentials
	err error
}

func (s shaking) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return raw, nil, s.err
}

func (s shaking) Clone() credentials.TransportCredentials {
	return shaking{insecure.NewCredentials(), s.err}
}
