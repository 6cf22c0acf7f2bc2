package service

import (
	"errors"
	"net"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/millwright-dev/millwright/internal/connlimit"
	"github.com/millwright-dev/millwright/internal/vm/identity"
)

// errTooMany is the error of a handshake that exceeds a limit. The client only sees that the connection is closed.
var errTooMany = errors.New("too many connections")

// listen returns a listener that immediately closes connections that exceed the limits.
func (l *limits) listen(inner net.Listener) net.Listener { return &listener{inner, l} }

type listener struct {
	net.Listener
	limits *limits
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		from := connlimit.OriginOf(conn.RemoteAddr())
		if l.limits.mayOpen(from) {
			if release, ok := l.limits.connections.Take(from); ok {
				return &connlimit.Counted{Conn: conn, Release: release}, nil
			}
		}
		_ = conn.Close()
	}
}

// admit returns credentials that refuse a connection after the handshake if it exceeds the limits. Connections
// without a certificate are closed after anonymousTime.
func (l *limits) admit(inner credentials.TransportCredentials) credentials.TransportCredentials {
	return &admitting{inner, l}
}

type admitting struct {
	credentials.TransportCredentials
	limits *limits
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
		release, ok = a.limits.peers.Take(who)
	} else {
		release, ok = a.limits.anonymous.Take(connlimit.OriginOf(raw.RemoteAddr()))
	}
	if !ok {
		return nil, nil, errors.Join(errTooMany, conn.Close())
	}
	admitted := &connlimit.Counted{Conn: conn, Release: release}
	if err == nil {
		return admitted, info, nil
	}
	end := time.AfterFunc(anonymousTime, func() { _ = admitted.Close() })
	return &connlimit.Counted{Conn: admitted, Release: func() { end.Stop() }}, info, nil
}

// Clone implements credentials.TransportCredentials.
func (a *admitting) Clone() credentials.TransportCredentials {
	return &admitting{a.TransportCredentials.Clone(), a.limits}
}
