package connlimit

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"testing"
	"testing/synctest"
	"time"

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

// open opens a connection of a listener, and returns both ends.
func (p pipes) open(t *testing.T, listener net.Listener) (client, server net.Conn) {
	t.Helper()
	client, theirs := net.Pipe()
	go func() { p <- theirs }()
	server, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close(); server.Close() })
	return client, server
}

// isOpen reports whether a client is connected.
func isOpen(client net.Conn) bool {
	_ = client.SetReadDeadline(time.Now().Add(time.Nanosecond))
	_, err := client.Read(make([]byte, 1))
	return errors.Is(err, os.ErrDeadlineExceeded)
}

// TestListener_DisplacesUnfinished checks that unfinished connections are limited, and that those which finish, in
// each way, leave their capacity to others.
func TestListener_DisplacesUnfinished(t *testing.T) {
	for name, finish := range map[string]func(*testing.T, net.Conn){
		"closed":    func(_ *testing.T, conn net.Conn) { conn.Close() },
		"known":     func(_ *testing.T, conn net.Conn) { Known(conn) },
		"anonymous": func(_ *testing.T, conn net.Conn) { Anonymous(conn) },
		"known by what TLS has made of it": func(_ *testing.T, conn net.Conn) {
			Known(tls.Server(conn, &tls.Config{MinVersion: tls.VersionTLS13}))
		},
		"known by its credentials": func(t *testing.T, conn net.Conn) {
			if _, _, err := Credentials(shaking{chains: true}).Clone().ServerHandshake(conn); err != nil {
				t.Error(err)
			}
		},
		"anonymous by its credentials": func(t *testing.T, conn net.Conn) {
			if _, _, err := Credentials(shaking{}).ServerHandshake(conn); err != nil {
				t.Error(err)
			}
		},
		"by a request": func(_ *testing.T, conn net.Conn) { AnonymousHTTP(conn, http.StateActive) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				clients := make(pipes)
				listener := Listen(clients, 2)
				first, _ := clients.open(t, listener)
				second, server := clients.open(t, listener)
				finish(t, server)
				third, _ := clients.open(t, listener)
				if !isOpen(first) || !isOpen(third) || isOpen(second) != (name != "closed") {
					t.Error("a connection was closed that had capacity")
				}
				clients.open(t, listener)
				if isOpen(first) || !isOpen(third) {
					t.Error("the oldest unfinished connection was not closed in favor of the last one")
				}
			})
		})
	}
}

// TestListener_LimitsAnonymous checks that anonymous connections displace each other, and no known or unfinished ones.
func TestListener_LimitsAnonymous(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clients := make(pipes)
		listener := Listen(clients, 2)
		known, server := clients.open(t, listener)
		Anonymous(server)
		Known(server)
		Anonymous(server) // has no effect any more
		var anonymous []net.Conn
		for range 3 {
			client, server := clients.open(t, listener)
			Anonymous(server)
			anonymous = append(anonymous, client)
		}
		unfinished, _ := clients.open(t, listener)
		if isOpen(anonymous[0]) || !isOpen(anonymous[1]) || !isOpen(anonymous[2]) || !isOpen(known) || !isOpen(unfinished) {
			t.Error("another connection than the oldest anonymous one was closed")
		}
	})
}

// TestListener_HandshakeTimeout checks that only unfinished connections have a deadline.
func TestListener_HandshakeTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clients := make(pipes)
		listener := Listen(clients, 9)
		unfinished, _ := clients.open(t, listener)
		anonymous, server := clients.open(t, listener)
		Anonymous(server)
		known, server := clients.open(t, listener)
		Known(server)
		time.Sleep(HandshakeTimeout - time.Millisecond)
		if !isOpen(unfinished) {
			t.Error("an unfinished connection was closed early")
		}
		time.Sleep(time.Second)
		if isOpen(unfinished) || !isOpen(anonymous) || !isOpen(known) {
			t.Error("not exactly the unfinished connection was closed")
		}
	})
}

// TestListener_FailedHandshakeIsNotKnown checks that a failed handshake does not make a peer known.
func TestListener_FailedHandshakeIsNotKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clients := make(pipes)
		listener := Listen(clients, 1)
		client, server := clients.open(t, listener)
		if _, _, err := Credentials(shaking{err: io.ErrUnexpectedEOF, chains: true}).ServerHandshake(server); err == nil {
			t.Fatal("no error")
		}
		clients.open(t, listener)
		if isOpen(client) {
			t.Error("the connection does not count any more")
		}
	})
}

// TestListener_LimitsSingleBytes checks that a client that sends single bytes is disconnected.
func TestListener_LimitsSingleBytes(t *testing.T) {
	clients := make(pipes)
	client, server := clients.open(t, Listen(clients, 1))
	go func() {
		for {
			if _, err := client.Write([]byte{0}); err != nil {
				return
			}
		}
	}()
	reads := 0
	for ; reads < 1000; reads++ {
		if _, err := server.Read(make([]byte, 1)); err != nil {
			break
		}
	}
	if reads != maxTurns {
		t.Errorf("%d single bytes were read, want %d", reads, maxTurns)
	}
}

// TestPeerCredentials_LimitsEachPeer checks that the connections of each authenticated client are limited.
func TestPeerCredentials_LimitsEachPeer(t *testing.T) {
	name := "a"
	peers := PeerCredentials(shaking{chains: true}, NewCounter(3, 2), func(credentials.TLSInfo) any { return name })
	open := func() net.Conn {
		_, theirs := net.Pipe()
		conn, _, err := peers.Clone().ServerHandshake(theirs)
		if err != nil {
			return nil
		}
		return conn
	}
	first := open()
	if first == nil || open() == nil || open() != nil {
		t.Error("a peer has not exactly two connections")
	}
	name = "b"
	if open() == nil || open() != nil {
		t.Error("the total is not three connections")
	}
	first.Close()
	if open() == nil {
		t.Error("a closed connection counts")
	}
}

// shaking is a handshake with the given result.
type shaking struct {
	credentials.TransportCredentials
	err error
	// chains means that the client has a verified certificate.
	chains bool
}

func (s shaking) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	var info credentials.TLSInfo
	if s.chains {
		info.State.VerifiedChains = [][]*x509.Certificate{{}}
	}
	return raw, info, s.err
}

func (s shaking) Clone() credentials.TransportCredentials {
	s.TransportCredentials = insecure.NewCredentials()
	return s
}
