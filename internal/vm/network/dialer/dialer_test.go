package dialer_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"github.com/millwright-dev/millwright/internal/vm/network"
	"github.com/millwright-dev/millwright/internal/vm/network/dialer"
)

// A Dialer reaches another port of the switch, which in this test is also a Dialer. It refuses a connection to a
// port on which nothing listens. That takes one packet in each direction.
func TestDialer_Dial(t *testing.T) {
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	socket := filepath.Join(t.TempDir(), "switch")
	listener, err := network.Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- network.NewSwitch(log).Serve(ctx, listener) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	guests := netip.MustParsePrefix("10.77.0.0/16")
	var dialers []*dialer.Dialer
	for i := range 2 {
		address := netip.MustParseAddr(fmt.Sprintf("10.77.0.%d", 4+i))
		d, err := dialer.New(ctx, socket, address, guests, log)
		if err != nil {
			t.Fatal(err)
		}
		dialers = append(dialers, d)
	}
	limit, stop := context.WithTimeout(ctx, time.Minute)
	defer stop()
	conn, err := dialers[0].Dial(limit, netip.MustParseAddrPort("10.77.0.5:10250"))
	if err == nil {
		conn.Close()
		t.Fatal("connected, want a refused connection")
	}
	if limit.Err() != nil {
		t.Fatal("got no response")
	}
	t.Log(err)
}

func TestDialer_Reaches(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	d, err := dialer.New(ctx, filepath.Join(t.TempDir(), "none"), netip.MustParseAddr("10.77.0.4"),
		netip.MustParsePrefix("10.77.0.0/16"), slog.New(slog.NewTextHandler(io.Discard, nil)))
	if err != nil {
		t.Fatal(err)
	}
	for address, want := range map[string]bool{"10.77.3.9": true, "10.78.0.1": false, "127.0.0.1": false, "fd77::1": false} {
		if got := d.Reaches(netip.MustParseAddr(address)); got != want {
			t.Errorf("%s: %t", address, got)
		}
	}
}
