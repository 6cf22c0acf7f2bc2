package load

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

var (
	first  = netip.MustParseAddrPort("10.77.0.16:30080")
	second = netip.MustParseAddrPort("10.77.0.17:30080")
)

var errRefused = errors.New("refused")

// answering connects to in-memory servers, one for each connection.
func answering(responses map[netip.AddrPort]http.HandlerFunc) func(context.Context, netip.AddrPort) (net.Conn, error) {
	return func(_ context.Context, target netip.AddrPort) (net.Conn, error) {
		handler := responses[target]
		if handler == nil {
			return nil, errRefused
		}
		here, there := net.Pipe()
		go func() {
			server := &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute}
			_ = server.Serve(&one{conn: there}) // returns when the connection is closed
		}()
		return here, nil
	}
}

// one is a listener with a single connection.
type one struct{ conn net.Conn }

func (l *one) Accept() (net.Conn, error) {
	conn := l.conn
	l.conn = nil
	if conn == nil {
		return nil, io.EOF
	}
	return conn, nil
}

func (*one) Close() error   { return nil }
func (*one) Addr() net.Addr { return &net.TCPAddr{} }

func ok(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "web") }

func after(pause time.Duration) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(pause)
		ok(w, r)
	}
}

func refuses(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }

func cutsOff(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Length", "100")
	_, _ = io.WriteString(w, "web")
	_ = http.NewResponseController(w).Flush()
	panic(http.ErrAbortHandler)
}

// TestLoad_CountsEveryRequest checks that a request without a complete and timely response counts as failed, and that
// nothing is sent twice.
func TestLoad_CountsEveryRequest(t *testing.T) {
	for name, tc := range map[string]struct {
		responses         map[netip.AddrPort]http.HandlerFunc
		targets           []netip.AddrPort
		succeeded, failed int
		slowest           time.Duration
		wantText          string
	}{
		"all respond":             {map[netip.AddrPort]http.HandlerFunc{first: ok, second: ok}, []netip.AddrPort{first, second}, 10, 0, 0, ""},
		"one is gone":             {map[netip.AddrPort]http.HandlerFunc{first: ok}, []netip.AddrPort{first, second}, 5, 5, 0, second.String() + ": refused"},
		"one refuses":             {map[netip.AddrPort]http.HandlerFunc{first: ok, second: refuses}, []netip.AddrPort{first, second}, 5, 5, 0, "503"},
		"one response is cut off": {map[netip.AddrPort]http.HandlerFunc{first: ok, second: cutsOff}, []netip.AddrPort{first, second}, 5, 5, 0, "reading the response"},
		"slow response":           {map[netip.AddrPort]http.HandlerFunc{first: after(4 * time.Second)}, []netip.AddrPort{first}, 10, 0, 4 * time.Second, ""},
		"timeout":                 {map[netip.AddrPort]http.HandlerFunc{first: after(time.Minute)}, []netip.AddrPort{first}, 0, 10, 0, "deadline"},
		"no node":                 {nil, nil, 0, 10, 0, "no node forwards to the service"},
		"the first is used":       {map[netip.AddrPort]http.HandlerFunc{first: ok}, []netip.AddrPort{first}, 10, 0, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second-time.Millisecond)
				defer cancel()
				g := New(Config{
					Targets: func() []netip.AddrPort { return tc.targets }, Dial: answering(tc.responses),
					Every: time.Second, Timeout: 5 * time.Second,
				})
				g.Run(ctx)
				count := g.Count()
				if count.Succeeded != tc.succeeded || count.Failed != tc.failed || count.Slowest != tc.slowest {
					t.Errorf("%s, want %d, %d and %s", count, tc.succeeded, tc.failed, tc.slowest)
				}
				if text := strings.Join(count.Failures, "\n"); !strings.Contains(text, tc.wantText) {
					t.Errorf("got %q, which lacks %q", text, tc.wantText)
				}
				time.Sleep(time.Minute) // late servers terminate as well
			})
		})
	}
}
