// Package connlimit limits the connections and requests of unauthenticated clients.
//
// Each connection uses a file descriptor and memory until its handshake has failed, and each handshake uses
// processor time, so that a client that merely reaches a port could exhaust a process. The connections of [Listen]
// are therefore in one of three states:
//
//   - Unfinished: the handshake is not complete. A port has a limited number of these, each with a deadline. The
//     computations of all handshakes of a process together have a limited number of processors, for which
//     addresses take turns.
//   - Anonymous, by [Anonymous]: the client is served, but has not proved who it is. A port has as many of these, in
//     addition.
//   - Known, by [Known]: the client is authenticated. These connections do not count, so unauthenticated clients
//     cannot use their capacity. Limit them by the name of the client, with a [Counter].
//
// A port at its limit does not refuse a new connection, because the clients that fill it would then keep out all
// others. Instead, the connection that costs least to lose is closed: the oldest one of the address with the most
// connections in that state. Clients that hold many connections, from however many addresses, therefore displace
// each other, and a handshake, which takes milliseconds, succeeds.
package connlimit

import (
	"errors"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/credentials"
)

// HandshakeTimeout is how long a connection of Listen may be unfinished.
const HandshakeTimeout = 5 * time.Second

// maxTurns limits how often a connection may receive data while it is unfinished. A handshake or the header of a request
// arrives in a few parts, also on a bad network, but a client could send single bytes.
const maxTurns = 64

// Listen returns a listener with at most total unfinished connections, and as many anonymous ones. Each connection
// must be passed to Known or Anonymous, or it is closed after HandshakeTimeout.
func Listen(inner net.Listener, total int) net.Listener {
	return &listener{inner, NewPool(total), NewPool(total)}
}

type listener struct {
	net.Listener
	unfinished, anonymous *Pool
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	inner, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: inner, from: OriginOf(inner.RemoteAddr()), anonymous: l.anonymous, closed: make(chan struct{})}
	c.mu.Lock()
	leave, displaced := l.unfinished.add(c.from, c.end)
	c.leave, c.deadline = leave, time.AfterFunc(HandshakeTimeout, c.end)
	c.mu.Unlock()
	displaced()
	return c, nil
}

// conn is a connection of Listen.
type conn struct {
	net.Conn
	from      Origin
	anonymous *Pool
	deadline  *time.Timer
	// closed is closed when the connection is.
	closed chan struct{}
	// turns is the number of turns that the handshake has taken.
	turns atomic.Int32
	// finished means that the handshake is complete.
	finished atomic.Bool

	mu sync.Mutex
	// leave leaves the current pool.
	leave func()
	// yield completes the current turn to compute; nil if there is none.
	yield func()
	ended bool
}

// Read implements net.Conn. What a handshake computes between two reads needs a turn.
func (c *conn) Read(p []byte) (int, error) {
	if c.finished.Load() {
		return c.Conn.Read(p)
	}
	c.endTurn()
	n, err := c.Conn.Read(p)
	if n > 0 && !c.finished.Load() && !c.takeTurn() {
		return 0, net.ErrClosed
	}
	return n, err
}

// Write implements net.Conn. A handshake writes when it has computed, and the peer may not read.
func (c *conn) Write(p []byte) (int, error) {
	if !c.finished.Load() {
		c.endTurn()
	}
	return c.Conn.Write(p)
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.mu.Lock()
	if !c.ended {
		c.ended = true
		close(c.closed)
		c.deadline.Stop()
		c.leave()
	}
	c.mu.Unlock()
	c.endTurn()
	return c.Conn.Close()
}

// end closes the connection from outside.
func (c *conn) end() { _ = c.Close() }

func (c *conn) takeTurn() bool {
	count := c.turns.Add(1)
	if count > maxTurns {
		return false
	}
	yield, ok := handshakes.take(c.from, count > 1, c.closed)
	if !ok {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended || c.finished.Load() {
		yield()
		return !c.ended
	}
	c.yield = yield
	return true
}

func (c *conn) endTurn() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.yield != nil {
		c.yield()
		c.yield = nil
	}
}

// finish completes the handshake. The connection is then in the pool of anonymous connections, or in none.
func (c *conn) finish(known bool) {
	c.endTurn()
	c.move(known)()
}

// move moves the connection to its next pool, and returns a function that closes the connection that it displaces.
func (c *conn) move(known bool) (displaced func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended || c.finished.Swap(true) && !known {
		return func() {}
	}
	c.deadline.Stop()
	c.leave()
	if known {
		c.leave = func() {}
		return c.leave
	}
	c.leave, displaced = c.anonymous.add(c.from, c.end)
	return displaced
}

// Known records that the client of a connection of Listen is authenticated. The connection may also be one on top of
// it, such as a TLS connection. Known does nothing for other connections.
func Known(of net.Conn) {
	if c := connOf(of); c != nil {
		c.finish(true)
	}
}

// Anonymous records that a client without authentication is served on a connection of Listen, or one on top of it.
// Anonymous does nothing for other connections, and for those of known clients.
func Anonymous(of net.Conn) {
	if c := connOf(of); c != nil {
		c.finish(false)
	}
}

// AnonymousHTTP is the ConnState of an HTTP server at Listen whose clients do not authenticate themselves.
// Connections are unfinished until the first request has been read.
func AnonymousHTTP(of net.Conn, state http.ConnState) {
	if state == http.StateActive {
		Anonymous(of)
	}
}

// KnownHTTP is the ConnState of an HTTP server at Listen that requires certificates of its clients in the handshake.
func KnownHTTP(of net.Conn, state http.ConnState) {
	if state == http.StateActive { // after the handshake
		Known(of)
	}
}

// Unwrap returns the connection below one of Listen, for a client that is Known or Anonymous. It returns other
// connections as they are.
func Unwrap(of net.Conn) net.Conn {
	if c, ok := of.(*conn); ok {
		return c.Conn
	}
	return of
}

// connOf returns the connection of Listen below another one, or nil if there is none.
func connOf(of net.Conn) *conn {
	for {
		switch c := of.(type) {
		case *conn:
			return c
		case interface{ NetConn() net.Conn }:
			of = c.NetConn()
		default:
			return nil
		}
	}
}

// Credentials returns credentials for a server at Listen. After the handshake, clients with a verified certificate are
// Known, and others Anonymous.
func Credentials(inner credentials.TransportCredentials) credentials.TransportCredentials {
	return &finishing{TransportCredentials: inner}
}

// PeerCredentials is like Credentials, but refuses further connections of known clients if there are too many, in total
// or of one client. name returns what identifies a client with a verified certificate.
func PeerCredentials(inner credentials.TransportCredentials, peers *Counter, name func(credentials.TLSInfo) any) credentials.TransportCredentials {
	return &finishing{inner, peers, name}
}

// errTooMany is the error of a handshake that exceeds a limit. The client only sees that the connection is closed.
var errTooMany = errors.New("too many connections of this client")

type finishing struct {
	credentials.TransportCredentials
	// peers and name may be nil.
	peers *Counter
	name  func(credentials.TLSInfo) any
}

// ServerHandshake implements credentials.TransportCredentials.
func (f *finishing) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := f.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		return nil, nil, err
	}
	secure, ok := info.(credentials.TLSInfo)
	if !ok || len(secure.State.VerifiedChains) == 0 {
		Anonymous(raw)
		return conn, info, nil
	}
	if f.peers != nil {
		release, ok := f.peers.Take(f.name(secure))
		if !ok {
			return nil, nil, errors.Join(errTooMany, conn.Close())
		}
		conn = &counted{conn, release}
	}
	Known(raw)
	return conn, info, nil
}

// Clone implements credentials.TransportCredentials.
func (f *finishing) Clone() credentials.TransportCredentials {
	return &finishing{f.TransportCredentials.Clone(), f.peers, f.name}
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
	return OriginOfIP(tcp.AddrPort().Addr())
}

// OriginOfIP returns the origin of an IP address.
func OriginOfIP(ip netip.Addr) Origin {
	ip = ip.Unmap().WithZone("")
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
