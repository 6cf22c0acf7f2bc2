package hypervisor

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/moved"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/ports"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/service"
	"github.com/millwright-dev/millwright/internal/vm/network/dialer"
)

const (
	// dialLimit is how long the guest may take to accept a connection, which includes the time for which it is stopped for a
	// migration. Clients have limits of their own.
	dialLimit = 30 * time.Second
	// quietTime is how long clients must have opened no connection before they all count as having found the guest's new
	// hypervisor. Each host learns of it within seconds.
	quietTime = 10 * time.Second
	// carryLimit limits how long a hypervisor carries connections after its guest has moved.
	carryLimit = 30 * time.Second
)

// clients connect to ports of the guest. The zero value has none.
type clients struct {
	guest clientsGuest
	// ports is nil if clients cannot connect to the guest.
	ports *ports.Server
	// stopChecks stops the checks of the guest; nil while there are none.
	stopChecks func()
	// carrier carries the connections after the guest has moved; nil before.
	carrier *moved.Carrier
}

// openPorts runs early, because the next step uses any free port. There is no guest yet. Clients of a guest that migrates
// may learn of its new hypervisor before it runs there.
func (h *hypervisor) openPorts(context.Context) (err error) {
	if h.config.Ports == nil || len(h.config.Network) == 0 {
		return nil
	}
	if h.origin() == migrated {
		h.clients.guest.wait()
	}
	h.clients.ports, err = ports.Listen(*h.config.Ports, &h.clients.guest, h.log)
	return err
}

// check starts to check whether the guest is ready for clients. ready reports whether it counts as ready until then.
func (c *clients) check(ready bool, report func(problem error)) {
	if c.ports != nil {
		c.stopChecks = c.ports.Check(ready, report)
	}
}

// receiveClients lets the source of a migration keep its connections to the guest, which does not run here yet.
func (h *hypervisor) receiveClients(source string) {
	direct := h.guest.machine.Direct()
	if h.clients.ports == nil || direct == nil {
		return
	}
	open := moved.Ports{TCP: h.config.Ports.Ports, UDP: h.config.Ports.UDPPorts}
	h.server.SetMoved(moved.Receive(direct, open, source, h.config.Migration.Siblings.Caller))
}

// carryClients keeps the connections of clients to a guest that another hypervisor has taken over. This hypervisor has no
// authority any more. Only the exit of the process waits for the connections.
func (h *hypervisor) carryClients() {
	direct := h.guest.machine.Direct()
	if h.clients.ports == nil || direct == nil {
		return
	}
	endpoint, pod := h.evacuation.migrations.Target()
	h.clients.carry(direct, func() (*grpc.ClientConn, error) { return h.config.Migration.Siblings.Dial(endpoint, pod) }, h.log)
}

func (c *clients) carry(direct *dialer.Direct, dial func() (*grpc.ClientConn, error), log *slog.Logger) {
	c.carrier = moved.Carry(dial, direct, log)
	if c.carrier == nil {
		return
	}
	go func() {
		select {
		case <-c.carrier.Ready():
		case <-c.carrier.Done():
		}
		c.guest.resume()
	}()
}

// detach stops the checks, and closes all connections that are not carried.
func (c *clients) detach() {
	if c.stopChecks != nil {
		c.stopChecks()
	}
	if c.ports != nil && c.carrier == nil {
		c.ports.Close()
	}
}

// close closes the connections that are carried when clients use the guest's new hypervisor, or after a limit.
func (c *clients) close(limit time.Duration) {
	if c.carrier == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), min(limit, carryLimit))
	defer cancel()
	go func() {
		defer cancel()
		select {
		case <-c.carrier.Done():
		case <-ctx.Done():
		}
	}()
	c.ports.AwaitIdle(ctx, quietTime)
	c.carrier.Close()
	c.ports.Close()
}

// clientsGuest is the guest as clients reach it. New connections wait while the guest is stopped for a migration, and
// continue when it runs again, here or at another hypervisor. It implements ports.Guest. The zero value has no guest, and
// connections do not wait for it.
type clientsGuest struct {
	mu    sync.Mutex
	guest service.Guest
	// resumed is closed when connections need not wait any more; nil if they need not wait.
	resumed chan struct{}
}

// run makes a guest available.
func (g *clientsGuest) run(guest service.Guest) {
	g.mu.Lock()
	g.guest = guest
	g.mu.Unlock()
	g.resume()
}

// wait makes new connections wait for resume.
func (g *clientsGuest) wait() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.resumed == nil {
		g.resumed = make(chan struct{})
	}
}

// resume continues the connections that wait.
func (g *clientsGuest) resume() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.resumed != nil {
		close(g.resumed)
		g.resumed = nil
	}
}

func (g *clientsGuest) current() (guest service.Guest, resumed <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.guest, g.resumed
}

var errNoGuest = errors.New("the guest does not run here")

// DialGuest implements ports.Guest.
func (g *clientsGuest) DialGuest(ctx context.Context, port uint16) (dialer.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialLimit)
	defer cancel()
	guest, resumed := g.current()
	for ; resumed != nil; guest, resumed = g.current() {
		select {
		case <-resumed:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	if guest == nil {
		return nil, errNoGuest
	}
	return guest.DialGuest(ctx, port)
}

// DialGuestUDP implements ports.Guest. It does not wait: datagrams may be lost.
func (g *clientsGuest) DialGuestUDP(port uint16, receive func(datagram []byte)) (dialer.Flow, error) {
	guest, _ := g.current()
	if guest == nil {
		return nil, errNoGuest
	}
	return guest.DialGuestUDP(port, receive)
}
