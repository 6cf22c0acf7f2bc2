package plugin

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"
)

// health answers probes.
type health struct {
	listener net.Listener
	server   *http.Server
}

// newHealth listens at an address.
func newHealth(ctx context.Context, address string, registered func() bool) (*health, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	probes := http.NewServeMux()
	probes.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("ok\n"))
	})
	probes.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if !registered() {
			http.Error(w, "the driver is not registered at the manager", http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write([]byte("ok\n"))
	})
	return &health{listener, &http.Server{Handler: probes, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute}}, nil
}

// serve serves until the context ends.
func (h *health) serve(ctx context.Context) error {
	forget := context.AfterFunc(ctx, func() { _ = h.server.Close() })
	defer forget()
	if err := h.server.Serve(h.listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
