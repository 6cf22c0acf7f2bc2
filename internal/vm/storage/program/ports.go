package program

import (
	"fmt"
	"net"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"github.com/millwright-dev/millwright/internal/connlimit"
	"github.com/millwright-dev/millwright/internal/vm/storage"
)

// maxAnonymous limits connections of the controller that are still in their handshake. Anyone on the network can open
// such connections.
const maxAnonymous = 128

// keepaliveOptions returns server options that detect broken connections.
func keepaliveOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ConnectionTimeout(connlimit.HandshakeTimeout),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: time.Minute, Timeout: 20 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}),
	}
}

// ports are the two ports of a server.
type ports struct{ control, sessions net.Listener }

func listen(control, sessions string) (p ports, err error) {
	if p.control, err = net.Listen("tcp", control); err != nil {
		return ports{}, fmt.Errorf("listening for the controller: %w", err)
	}
	if p.sessions, err = net.Listen("tcp", sessions); err != nil {
		_ = p.control.Close()
		return ports{}, fmt.Errorf("listening for sessions: %w", err)
	}
	return p, nil
}

func (p ports) close() { _, _ = p.control.Close(), p.sessions.Close() }

// bounded returns the listener for the controller, which limits connections.
func (p ports) bounded() net.Listener {
	return connlimit.Listen(p.control, maxAnonymous)
}

// attachment returns the response to Open. If the sessions port listens on an unspecified address, it is replaced
// by the address of the control port, if that is specified.
func (p ports) attachment(pod string) storage.Attachment {
	at, control := *p.sessions.Addr().(*net.TCPAddr), p.control.Addr().(*net.TCPAddr)
	if at.IP.IsUnspecified() {
		at.IP = control.IP
	}
	return storage.Attachment{Address: net.JoinHostPort(at.IP.String(), strconv.Itoa(at.Port)), Pod: pod}
}
