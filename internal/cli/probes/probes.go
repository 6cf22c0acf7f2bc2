// Package probes serves the health probes of a process.
package probes

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"

	"github.com/millwright-dev/millwright/internal/connlimit"
)

// maxClients limits the connections, since anyone who can reach the port can open them.
const maxClients = 256

// Server serves the probes /healthz, which succeeds while the process lives, and /readyz, which succeeds while
// it is ready.
type Server struct {
	listener net.Listener
	server   *http.Server
}

// Listen listens on an address. ready returns why the process is not ready, or nil.
func Listen(ctx context.Context, address string, ready func() error) (*Server, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	probes := http.NewServeMux()
	probes.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("ok\n"))
	})
	probes.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := ready(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write([]byte("ok\n"))
	})
	server := &http.Server{Handler: probes, ConnState: connlimit.AnonymousHTTP, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute}
	return &Server{connlimit.Listen(listener, maxClients), server}, nil
}

// Serve serves until the context is done.
func (s *Server) Serve(ctx context.Context) error {
	forget := context.AfterFunc(ctx, func() { _ = s.server.Close() })
	defer forget()
	if err := s.server.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
