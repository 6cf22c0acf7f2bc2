package server

import (
	"net"
	"sync"
)

// maxConnections bounds the connections of an endpoint, also those in the handshake. maxPerAddress are those of an
// address, so that one that floods a port leaves it to others.
const maxConnections, maxPerAddress = 256, 64

// limited closes connections over the bounds at once.
type limited struct {
	net.Listener
	total, perAddress int

	mu   sync.Mutex
	open int
	of   map[string]int // connections of each address that has some
}

func limit(inner net.Listener, total, perAddress int) *limited {
	return &limited{Listener: inner, total: total, perAddress: perAddress, of: map[string]int{}}
}

// Accept implements net.Listener.
func (l *limited) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		address, _, _ := net.SplitHostPort(conn.RemoteAddr().String())
		if l.take(address) {
			return &counted{Conn: conn, release: sync.OnceFunc(func() { l.give(address) })}, nil
		}
		_ = conn.Close()
	}
}

func (l *limited) take(address string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open >= l.total || l.of[address] >= l.perAddress {
		return false
	}
	l.open++
	l.of[address]++
	return true
}

func (l *limited) give(address string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open--
	if l.of[address]--; l.of[address] == 0 {
		delete(l.of, address)
	}
}

// counted is a connection that counts until it is closed.
type counted struct {
	net.Conn
	release func()
}

// Close implements net.Conn.
func (c *counted) Close() error {
	defer c.release()
	return c.Conn.Close()
}
