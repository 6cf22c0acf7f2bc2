package ui

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gorilla/websocket"
	"k8s.io/apimachinery/pkg/types"

	"github.com/millwright-dev/millwright/test/support/memnet"
)

// serveInMemory serves WebSockets until the test is complete, and returns a function that opens one.
func serveInMemory(t *testing.T, handler http.HandlerFunc) (dial func() (*websocket.Conn, error)) {
	network := memnet.New()
	server := &http.Server{Handler: handler}
	go server.Serve(network) // until it is closed
	t.Cleanup(func() { server.Close() })
	dialer := &websocket.Dialer{NetDialContext: func(ctx context.Context, _, address string) (net.Conn, error) { return network.Dial(ctx, address) }}
	return func() (*websocket.Conn, error) {
		conn, response, err := dialer.Dial("ws://console.test/?namespace=n&name=vm", nil)
		if err == nil {
			response.Body.Close()
			t.Cleanup(func() { conn.Close() })
		}
		return conn, err
	}
}

// TestConsole_SendsPingsWhileGuestIsSilent checks that idle consoles get pings more often than once a minute, because proxies
// close idle connections after a minute.
func TestConsole_SendsPingsWhileGuestIsSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		guest := serveInMemory(t, func(w http.ResponseWriter, r *http.Request) {
			if conn, err := upgrader.Upgrade(w, r, nil); err == nil {
				_, _, _ = conn.ReadMessage() // until it is closed
				conn.Close()
			}
		})
		s := newView(Options{Control: newFakeClient(t), Console: func(context.Context, types.NamespacedName) (*websocket.Conn, error) { return guest() }})
		tab, err := serveInMemory(t, s.console)()
		if err != nil {
			t.Fatal(err)
		}
		pings := 0
		tab.SetPingHandler(func(string) error {
			pings++
			return nil
		})
		_ = tab.SetReadDeadline(time.Now().Add(59 * time.Second)) // fails only on closed connections
		if _, _, err := tab.ReadMessage(); pings != 2 {
			t.Errorf("%d pings in 59 seconds, want 2; then: %v", pings, err)
		}
		s.stop(nil)
	})
}

// TestConsole_ReportsWhyItIsRefused checks that a tab gets as much of a long reason as fits into a WebSocket's close message.
func TestConsole_ReportsWhyItIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reason := "virtualmachines.console.vm.metropolis.monogon.dev is forbidden: " + strings.Repeat("é", 100)
		s := newView(Options{Control: newFakeClient(t), Console: func(context.Context, types.NamespacedName) (*websocket.Conn, error) { return nil, errors.New(reason) }})
		tab, err := serveInMemory(t, s.console)()
		if err != nil {
			t.Fatal(err)
		}
		_, _, err = tab.ReadMessage()
		closed := (*websocket.CloseError)(nil)
		if !errors.As(err, &closed) || closed.Code != closeRefused || !strings.HasPrefix(reason, closed.Text) || len(closed.Text) < maxReason-1 {
			t.Errorf("the console was closed with %v", err)
		}
		s.stop(nil)
	})
}
