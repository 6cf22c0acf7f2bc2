// Package egress connects kube-apiserver to nodes. kube-apiserver requests the connections by HTTP CONNECT over
// a Unix socket; see "Konnectivity" in the Kubernetes documentation.
package egress

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"time"
)

// Dial connects to HOST:PORT.
type Dial func(ctx context.Context, address string) (net.Conn, error)

const (
	// dialLimit is how long it may take to connect.
	dialLimit = 30 * time.Second
	// headerLimit is how long a client may take to send its request.
	headerLimit = 10 * time.Second
)

// Serve makes connections until the context is done, and then closes them. It closes the listener.
func Serve(ctx context.Context, listener net.Listener, dial Dial) error {
	var open sync.WaitGroup
	defer open.Wait()
	server := &http.Server{
		ReadHeaderTimeout: headerLimit,
		BaseContext:       func(net.Listener) context.Context { return ctx },
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			open.Add(1)
			defer open.Done()
			connect(ctx, w, r, dial)
		}),
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func connect(ctx context.Context, w http.ResponseWriter, r *http.Request, dial Dial) {
	if r.Method != http.MethodConnect {
		http.Error(w, "only CONNECT is served", http.StatusMethodNotAllowed)
		return
	}
	dialing, cancel := context.WithTimeout(ctx, dialLimit)
	defer cancel()
	to, err := dial(dialing, r.Host)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer to.Close()
	from, sent, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	defer from.Close()
	stop := context.AfterFunc(ctx, func() {
		_ = from.Close()
		_ = to.Close()
	})
	defer stop()
	if _, err := io.WriteString(from, "HTTP/1.1 200 Connection established\r\n\r\n"); err != nil {
		return
	}
	join(from, sent, to)
}

// join copies in both directions until both are closed. sent has the data that the client has already sent.
func join(from net.Conn, sent io.Reader, to net.Conn) {
	var back sync.WaitGroup
	back.Go(func() { copyTo(from, to) })
	copyTo(to, sent)
	back.Wait()
}

// copyTo copies until the end of the input, and then closes the write side of the output.
func copyTo(to net.Conn, from io.Reader) {
	_, err := io.Copy(to, from)
	if half, ok := to.(interface{ CloseWrite() error }); ok && err == nil {
		_ = half.CloseWrite()
		return
	}
	_ = to.Close()
}
