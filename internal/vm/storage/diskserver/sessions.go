package diskserver

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/millwright-dev/millwright/internal/connlimit"
	"github.com/millwright-dev/millwright/internal/vm/storage/session"
)

// maxAnonymous limits connections that are still in their handshake. Anyone on the network can open such connections.
const maxAnonymous = 128

// beginLimit is how long a session may take from the handshake to its first data.
const beginLimit = 10 * time.Second

// AcceptAny authenticates a connection with a hypervisor of the virtual machine and returns the hypervisor's Pod.
// It is identity.Siblings.AcceptAny.
type AcceptAny func(ctx context.Context, raw net.Conn, protocol string) (*tls.Conn, string, error)

// Serve serves sessions of hypervisors until the context is canceled. It then closes the listener and waits until
// the sessions have ended.
func (s *Server) Serve(ctx context.Context, listener net.Listener, accept AcceptAny) {
	var sessions sync.WaitGroup
	defer sessions.Wait()
	defer context.AfterFunc(ctx, func() { _ = listener.Close() })()
	bounded := connlimit.Listen(listener, maxAnonymous)
	for {
		raw, err := session.Accept(ctx, bounded)
		if err != nil {
			return
		}
		sessions.Go(func() {
			if err := s.serve(ctx, raw, accept); err != nil {
				s.log.Info("refused a session", "from", raw.RemoteAddr().String(), "error", err)
			}
		})
	}
}

// serve serves one session until it is cut.
func (s *Server) serve(ctx context.Context, raw net.Conn, accept AcceptAny) error {
	defer func() { _ = raw.Close() }()
	beginning, cancel := context.WithTimeout(ctx, beginLimit)
	defer cancel()
	conn, pod, err := accept(beginning, raw, session.Protocol)
	if err != nil {
		return err
	}
	connlimit.Known(raw)
	begun := context.AfterFunc(beginning, func() { _ = raw.Close() })
	token, err := session.ReadToken(conn)
	if err != nil {
		return err
	}
	daemon, err := s.join(token, pod, raw)
	if err != nil {
		_ = session.Respond(conn, err)
		_ = conn.CloseWrite()
		return fmt.Errorf("pod %s with token %d: %w", pod, token, err)
	}
	defer s.leave(token, raw)
	disks, err := daemon.dial(beginning)
	if err != nil {
		return fmt.Errorf("connecting to the storage daemon: %w", err)
	}
	if err := session.Respond(conn, nil); err != nil {
		_ = disks.Close()
		return err
	}
	begun()
	session.Join(ctx, conn, disks)
	return nil
}
