// Package loadbalancer forwards TCP connections to API servers that are ready.
//
// It does not terminate TLS: clients and servers authenticate each other. New connections go to servers that
// are ready or, if none is, to servers that at least respond. A server that is only unready keeps its
// connections; a server that does not respond or is removed loses them, so that clients reconnect to another
// one.
package loadbalancer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millwright-dev/millwright/internal/connlimit"
)

// Options configure a Balancer.
type Options struct {
	// Dial connects to HOST:PORT. It is required.
	Dial func(ctx context.Context, address string) (net.Conn, error)
	// Check determines the health of a server through a connection, which is then closed. Defaults to Readyz.
	Check func(ctx context.Context, conn net.Conn) (Health, error)
	// MaxConnections is the maximum number of connections, and MaxPerClient the maximum per client address. Without
	// capacity for a new connection, the oldest one of the client with the most connections is closed, or the new
	// one if its client has as many. Silent clients do not count. They default to 4096 and 1024.
	MaxConnections, MaxPerClient int
	// Capacity limits the connections of several Balancers together. If nil, only the other limits apply.
	Capacity *Capacity
	// Changed, if set, is called when the health of a server has changed.
	Changed func()
	// Log is required.
	Log *slog.Logger
}

const (
	// checkEvery is the interval between two checks of a server, and checkLimit the time limit of a check.
	checkEvery, checkLimit = 2 * time.Second, 5 * time.Second
	// failures is the number of consecutive failed checks after which a server is Down.
	failures = 3
	// dialLimit is how long a server may take to accept a connection before the next server is tried.
	dialLimit = 5 * time.Second
	// maxSilent is the maximum number of clients that have not sent anything yet, each of which may be silent for
	// connlimit.HandshakeTimeout. In TLS, the client sends first.
	maxSilent = 1024
	// halfClosedLimit is how long one direction may outlive the other.
	halfClosedLimit = time.Minute
	// acceptPause is the delay before connections are accepted again after a failure, for example a lack of
	// file descriptors.
	acceptPause = 100 * time.Millisecond
)

// Balancer forwards the connections of listeners to its servers. Use New to create one.
type Balancer struct {
	opts Options
	open *connlimit.Counter
	// established are the connections whose clients have sent something.
	established *connlimit.Pool
	// reserved is the share of the Capacity.
	reserved reservation
	// now and refused are the numbers of connections for Stats.
	now     atomic.Int64
	refused atomic.Uint64

	mu      sync.Mutex
	servers map[string]*server
	ended   bool
	checks  sync.WaitGroup
}

// New returns a Balancer without servers.
func New(opts Options) *Balancer {
	opts.MaxConnections, opts.MaxPerClient = cmp.Or(opts.MaxConnections, 4096), cmp.Or(opts.MaxPerClient, 1024)
	if opts.Check == nil {
		opts.Check = Readyz
	}
	if opts.Changed == nil {
		opts.Changed = func() {}
	}
	if opts.Capacity == nil {
		opts.Capacity = NewCapacity(2*opts.MaxConnections, 1)
	}
	return &Balancer{
		opts: opts, open: connlimit.NewCounter(opts.MaxConnections, opts.MaxPerClient), reserved: opts.Capacity.reserve(),
		established: connlimit.NewUnlimitedPool(),
		servers:     map[string]*server{},
	}
}

// SetServers sets the addresses of the servers, each HOST:PORT. New servers are Down until their first check.
// The connections of removed servers are closed.
func (b *Balancer) SetServers(addresses []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for address, s := range b.servers {
		if !slices.Contains(addresses, address) {
			delete(b.servers, address)
			s.end()
		}
	}
	for _, address := range addresses {
		if b.servers[address] != nil || b.ended {
			continue
		}
		ctx, cancel := context.WithCancel(context.Background())
		s := &server{address: address, stop: cancel, conns: map[net.Conn]struct{}{}}
		b.servers[address] = s
		b.checks.Go(func() { b.watch(ctx, s) })
	}
}

// Healthy returns the number of servers with that health or a better one.
func (b *Balancer) Healthy(atLeast Health) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	count := 0
	for _, s := range b.servers {
		if s.health >= atLeast {
			count++
		}
	}
	return count
}

// Stats describes the current state of a Balancer.
type Stats struct {
	// Servers is the number of servers by health.
	Servers map[Health]int
	// Connections is the number of open client connections.
	Connections int
	// Refused is the number of connections that were closed because there were too many.
	Refused uint64
}

// Stats returns the current state of the Balancer.
func (b *Balancer) Stats() Stats {
	b.mu.Lock()
	defer b.mu.Unlock()
	stats := Stats{Servers: map[Health]int{}, Connections: int(b.now.Load()), Refused: b.refused.Load()}
	for _, s := range b.servers {
		stats.Servers[s.health]++
	}
	return stats
}

// Serve forwards connections until the context is done, and closes the listener. It then closes the connections
// and stops the checks; the Balancer cannot be used again.
func (b *Balancer) Serve(ctx context.Context, listener net.Listener) error {
	stop := context.AfterFunc(ctx, func() { _ = listener.Close() })
	defer stop()
	var connections sync.WaitGroup
	defer func() {
		b.end()
		connections.Wait()
		b.checks.Wait()
	}()
	bounded := connlimit.Listen(listener, maxSilent)
	for {
		client, err := bounded.Accept()
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, net.ErrClosed):
			return fmt.Errorf("accepting connections at %s: %w", listener.Addr(), err)
		case err != nil:
			b.opts.Log.Error("Accepting a connection failed", "error", err)
			pause(ctx, acceptPause)
			continue
		}
		connections.Go(func() { b.serve(ctx, client) })
	}
}

func (b *Balancer) end() {
	b.mu.Lock()
	b.ended = true
	b.mu.Unlock()
	b.SetServers(nil)
}

// candidates returns the servers to try for a connection, in order of their connections, fewest first: the
// ready servers or, if there are none, those that respond.
func (b *Balancer) candidates() []*server {
	b.mu.Lock()
	defer b.mu.Unlock()
	best := Unready
	for _, s := range b.servers {
		best = max(best, s.health)
	}
	type candidate struct {
		*server
		conns int
	}
	var found []candidate
	for _, s := range b.servers {
		if s.health == best {
			found = append(found, candidate{s, len(s.conns)})
		}
	}
	slices.SortFunc(found, func(x, y candidate) int { return cmp.Or(x.conns-y.conns, cmp.Compare(x.address, y.address)) })
	servers := make([]*server, len(found))
	for i, c := range found {
		servers[i] = c.server
	}
	return servers
}

// connect connects to a server. The connection belongs to the server until release. It is nil if no server is
// available.
func (b *Balancer) connect(ctx context.Context) (conn net.Conn, release func()) {
	for _, s := range b.candidates() {
		dialing, cancel := context.WithTimeout(ctx, dialLimit)
		conn, err := b.opts.Dial(dialing, s.address)
		cancel()
		if err != nil {
			b.opts.Log.Info("A server did not accept a connection", "server", s.address, "error", err)
			continue
		}
		if release, ok := b.own(s, conn); ok {
			return conn, release
		}
		_ = conn.Close()
	}
	return nil, nil
}

// own assigns a connection to a server, unless the server has been removed.
func (b *Balancer) own(s *server, conn net.Conn) (release func(), ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.servers[s.address] != s {
		return nil, false
	}
	s.conns[conn] = struct{}{}
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(s.conns, conn)
		_ = conn.Close()
	}, true
}
