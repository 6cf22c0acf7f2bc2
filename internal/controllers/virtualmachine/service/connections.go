package service

import (
	"net"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/millwright-dev/millwright/internal/connlimit"
	"github.com/millwright-dev/millwright/internal/vm/identity"
)

// listen returns a listener that limits connections without a certificate.
func (l *limits) listen(inner net.Listener) net.Listener {
	return connlimit.Listen(inner, maxAnonymous)
}

// admit returns credentials that limit the connections of each hypervisor. Connections without a certificate are closed
// after anonymousTime.
func (l *limits) admit(inner credentials.TransportCredentials) credentials.TransportCredentials {
	return &admitting{connlimit.PeerCredentials(inner, l.peers, func(info credentials.TLSInfo) any {
		who, _ := identity.FromAuthInfo(info) // the handshake has checked the name
		return who
	})}
}

type admitting struct {
	credentials.TransportCredentials
}

// ServerHandshake implements credentials.TransportCredentials.
func (a *admitting) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := a.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		return nil, nil, err
	}
	if _, err := identity.FromAuthInfo(info); err == nil {
		return conn, info, nil
	}
	return &temporary{conn, time.AfterFunc(anonymousTime, func() { _ = conn.Close() })}, info, nil
}

// Clone implements credentials.TransportCredentials.
func (a *admitting) Clone() credentials.TransportCredentials {
	return &admitting{a.TransportCredentials.Clone()}
}

// temporary is a connection that a timer closes.
type temporary struct {
	net.Conn
	end *time.Timer
}

// Close implements net.Conn.
func (t *temporary) Close() error {
	t.end.Stop()
	return t.Conn.Close()
}
