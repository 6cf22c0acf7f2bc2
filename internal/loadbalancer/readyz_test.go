package loadbalancer

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

func TestReadyz(t *testing.T) {
	for name, test := range map[string]struct {
		status int
		want   Health
	}{
		"ready":             {http.StatusOK, Ready},
		"not ready":         {http.StatusInternalServerError, Unready},
		"no health":         {http.StatusNotFound, Unready},
		"unauthorized":      {http.StatusUnauthorized, Ready},
		"forbidden":         {http.StatusForbidden, Ready},
		"too many requests": {http.StatusTooManyRequests, Unready},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Method != http.MethodGet || r.URL.Path != "/readyz" || r.Header.Get("Authorization") != "" {
					t.Errorf("asked for %s %s", r.Method, r.URL)
				}
				w.WriteHeader(test.status)
			}))
			defer server.Close()
			health, err := Readyz(t.Context(), dial(t, server.Listener.Addr()))
			if health != test.want || (health == Ready) != (err == nil) {
				t.Errorf("%v, %v; want %v", health, err, test.want)
			}
		})
	}
}

// TestReadyz_InvalidServerIsNotReady checks that a server that does not speak TLS, does not speak HTTP over it, or does
// not respond is not ready.
func TestReadyz_InvalidServerIsNotReady(t *testing.T) {
	for name, serve := range map[string]func(net.Conn){
		"another protocol": func(conn net.Conn) { _, _ = io.WriteString(conn, "SSH-2.0-x\r\n") },
		"an end":           func(net.Conn) {},
		"silence":          func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) },
	} {
		t.Run(name, func(t *testing.T) {
			here, there := net.Pipe()
			defer here.Close()
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			go func() {
				go func() { _, _ = io.Copy(io.Discard, there) }()
				serve(there)
				_ = there.Close()
			}()
			if health, err := Readyz(ctx, here); health != Down || err == nil {
				t.Errorf("%v, %v", health, err)
			}
		})
	}
}

func dial(t *testing.T, address net.Addr) net.Conn {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", address.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}
