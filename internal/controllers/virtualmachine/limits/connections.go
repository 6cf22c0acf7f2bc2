package limits

import (
	"errors"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/millwright-dev/millwright/internal/vm/identity"
)

// errTooMany ends a handshake. The other end sees a closed connection.
var errTooMany = errors.New("too many connections")

// counter counts what is in use, in total and for each key.
type counter struct {
	total, perKey int

	mu   sync.Mutex
	all  int
	keys map[any]int
}

func newCounter(total, perKey int) *counter {
	return &counter{total: total, perKey: perKey, keys: map[any]int{}}
}

// take counts one more, until release, which may be called repeatedly.
func (c *counter) take(key any) (release func(), ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.all >= c.total || c.keys[key] >= c.perKey {
		return nil, false
	}
	c.all++
	c.keys[key]++
	return sync.OnceFunc(func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.all--
		if c.keys[key]--; c.keys[key] == 0 {
			delete(c.keys, key)
		}
	}), true
}

// Listen returns a listener that closes connections over the limits at once.
func (l *Limits) Listen(inner net.Listener) net.Listener { return &listener{inner, l} }

type listener struct {
	net.Listener
	limits *Limits
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		from := originOf(conn.RemoteAddr())
		if l.limits.mayOpen(from) {
			if release, ok := l.limits.connections.take(from); ok {
				return &counted{conn, release}, nil
			}
		}
		_ = conn.Close()
	}
}

// counted is a connection that is counted until it is closed.
type counted struct {
	net.Conn
	release func()
}

// Close implements net.Conn.
func (c *counted) Close() error {
	defer c.release()
	return c.Conn.Close()
}

// Admit returns credentials that refuse connections over the limits after the handshake, and
// end those without a certificate after a while.
func (l *Limits) Admit(inner credentials.TransportCredentials) credentials.TransportCredentials {
	return &admitting{inner, l}
}

type admitting struct {
	credentials.TransportCredentials
	limits *Limits
}

// ServerHandshake implements credentials.TransportCredentials.
func (a *admitting) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := a.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		return nil, nil, err
	}
	who, err := identity.FromAuthInfo(info)
	var release func()
	var ok bool
	if err == nil {
		release, ok = a.limits.peers.take(who)
	} else {
		release, ok = a.limits.anonymous.take(originOf(raw.RemoteAddr()))
	}
	if !ok {
		return nil, nil, errors.Join(errTooMany, conn.Close())
	}
	admitted := &counted{conn, release}
	if err == nil {
		return admitted, info, nil
	}
	end := time.AfterFunc(anonymousTime, func() { _ = admitted.Close() })
	return &counted{admitted, func() { end.Stop() }}, info, nil
}

// Clone implements credentials.TransportCredentials.
func (a *admitting) Clone() credentials.TransportCredentials {
	return &admitting{a.TransportCredentials.Clone(), a.limits}
}
