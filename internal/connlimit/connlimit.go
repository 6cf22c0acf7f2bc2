// Package connlimit limits the connections and requests of unauthenticated clients.
//
// Each connection uses a file descriptor and memory until its handshake has failed, so that a client that
// merely reaches a port could exhaust a process. Connections over the limits are closed immediately. Each
// address gets only a part of the total, so that one client that floods a port leaves capacity for others.
package connlimit

import (
	"net"
	"net/netip"
	"sync"

	"google.golang.org/grpc/credentials"
)

// Listen returns a listener that immediately closes connections over the limits: total for all addresses, and
// perAddress for each. A connection counts until it is closed or passed to Known.
func Listen(inner net.Listener, total, perAddress int) net.Listener {
	return &listener{inner, NewCounter(total, perAddress)}
}

type listener struct {
	net.Listener
	open *Counter
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if release, ok := l.open.Take(OriginOf(conn.RemoteAddr())); ok {
			return &Counted{conn, release}, nil
		}
		_ = conn.Close()
	}
}

// Counted is a connection that counts until it is closed.
type Counted struct {
	net.Conn
	// Release stops counting the connection. It may be called repeatedly.
	Release func()
}

// Close implements net.Conn.
func (c *Counted) Close() error {
	defer c.Release()
	return c.Conn.Close()
}

// Known stops counting a connection of Listen, or a TLS connection on top of one, whose client is
// authenticated. It does nothing for other connections.
func Known(conn net.Conn) {
	for {
		switch c := conn.(type) {
		case *Counted:
			c.Release()
			return
		case interface{ NetConn() net.Conn }:
			conn = c.NetConn()
		default:
			return
		}
	}
}

// Credentials returns credentials for a server at Listen. Clients are Known after the handshake.
func Credentials(inner credentials.TransportCredentials) credentials.TransportCredentials {
	return &knowing{inner}
}

type knowing struct {
	credentials.TransportCredentials
}

// ServerHandshake implements credentials.TransportCredentials.
func (k *knowing) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := k.TransportCredentials.ServerHandshake(raw)
	if err == nil {
		Known(raw)
	}
	return conn, info, err
}

// Clone implements credentials.TransportCredentials.
func (k *knowing) Clone() credentials.TransportCredentials {
	return &knowing{k.TransportCredentials.Clone()}
}

// Counter limits what is in use, in total and per key.
type Counter struct {
	total, perKey int

	mu   sync.Mutex
	all  int
	keys map[any]int
}

// NewCounter returns a counter with the given limits.
func NewCounter(total, perKey int) *Counter {
	return &Counter{total: total, perKey: perKey, keys: map[any]int{}}
}

// Take counts one more until release, which may be called repeatedly. It returns false if that exceeds a limit.
func (c *Counter) Take(key any) (release func(), ok bool) { return c.TakeSome(key, 1) }

// TakeSome is like Take for some at the same time.
func (c *Counter) TakeSome(key any, some int) (release func(), ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.all > c.total-some || c.keys[key] > c.perKey-some {
		return nil, false
	}
	c.all += some
	c.keys[key] += some
	return sync.OnceFunc(func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.all -= some
		if c.keys[key] -= some; c.keys[key] == 0 {
			delete(c.keys, key)
		}
	}), true
}

// Origin is the set of addresses that one client may have: an IPv4 address or an IPv6 /64.
type Origin netip.Prefix

// OriginOf returns the origin of a TCP address. All other addresses share one origin.
func OriginOf(address net.Addr) Origin {
	tcp, ok := address.(*net.TCPAddr)
	if !ok {
		return Origin{}
	}
	ip := tcp.AddrPort().Addr().Unmap().WithZone("")
	bits := ip.BitLen()
	if ip.Is6() {
		bits = 64
	}
	prefix, err := ip.Prefix(bits)
	if err != nil {
		return Origin{}
	}
	return Origin(prefix)
}
