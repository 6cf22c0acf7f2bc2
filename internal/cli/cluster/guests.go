package cluster

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"

	"github.com/millwright-dev/millwright/internal/local/egress"
	"github.com/millwright-dev/millwright/internal/vm/network"
	"github.com/millwright-dev/millwright/internal/vm/network/dialer"
)

// connectGuests serves the switch between guests. There is one for all hosts, since they all run on this
// machine. Hypervisors that outlive this process reconnect to the switch of the next one.
func (m *local) connectGuests(ctx context.Context, group *errgroup.Group) error {
	if !m.connected {
		return nil
	}
	listener, err := network.Listen(m.switchSocket())
	if err != nil {
		return err
	}
	between := network.NewSwitch(slog.New(logr.ToSlogHandler(m.log.WithName("switch"))))
	group.Go(func() error { return between.Serve(ctx, listener) })
	return nil
}

// reachGuests lets the API server reach guests that run Pods, through the switch.
func (m *local) reachGuests(ctx context.Context, group *errgroup.Group) error {
	if m.guest != guestFull {
		return nil
	}
	guests, err := dialer.New(ctx, m.switchSocket(), hostAddress(m.network), m.network,
		slog.New(logr.ToSlogHandler(m.log.WithName("egress"))))
	if err != nil {
		return err
	}
	socket, err := m.egressSocket()
	if err != nil {
		return err
	}
	listener, err := network.Listen(socket)
	if err != nil {
		return err
	}
	group.Go(func() error {
		return egress.Serve(ctx, listener, func(ctx context.Context, address string) (net.Conn, error) {
			if guest, err := netip.ParseAddrPort(address); err == nil && guests.Reaches(guest.Addr()) {
				return guests.Dial(ctx, guest)
			}
			return (&net.Dialer{}).DialContext(ctx, "tcp", address)
		})
	})
	return nil
}

// egressSocket returns the socket through which the API server connects, or "" if it connects directly.
func (m *local) egressSocket() (string, error) {
	if m.guest != guestFull {
		return "", nil
	}
	dir, err := filepath.Abs(m.dir)
	if err != nil {
		return "", fmt.Errorf("cannot find the data directory: %w", err)
	}
	return filepath.Join(dir, "egress.sock"), nil
}

// hostAddress returns the address from which the API server reaches guests. The first sixteen addresses of a
// network are not given to VMs.
func hostAddress(network netip.Prefix) netip.Addr {
	address := network.Addr().As4()
	address[3] += 4
	return netip.AddrFrom4(address)
}

// switchSocket returns the socket of the switch, or "" if guests cannot reach each other.
func (m *local) switchSocket() string {
	if !m.connected {
		return ""
	}
	return m.path("switch.sock")
}
