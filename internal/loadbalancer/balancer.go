// Package loadbalancer forwards TCP connections to API servers that are ready.
//
// It does not take part in TLS: clients and servers prove to each other who they are. A server gets
// new connections while it is ready, or, as long as none is, while it at least answers. One that is only
// unready keeps the connections that it has; one that does not answer, or is taken away, loses them, so that clients
// connect to another one.
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
	// Dial connects to HOST:PORT. Required.
	Dial func(ctx context.Context, address string) (net.Conn, error)
	// Check finds out the health of a server through a connection, which is closed after it. Default: Readyz.
	Check func(ctx context.Context, conn net.Conn) (Health, error)
	// MaxConnections is how many connections there may be, and MaxPerClient how many of one client's address.
	// Others are closed at once. Default: 4096 and 1024.
	MaxConnections, MaxPerClient int
	// Changed is called when the health of a server has changed. Default: nothing is called.
	Changed func()
	// Log is required.
	Log *slog.Logger
}

const (
	// checkEvery is the time between two checks of a server, and checkLimit how long one may take.
	checkEvery, checkLimit = 2 * time.Second, 5 * time.Second
	// failures of checks in a row until a server is Down.
	failures = 3
	// dialLimit is how long a server may take to accept a connection, until the next one is tried.
	dialLimit = 5 * time.Second
	// helloLimit is how long a client may be silent at the beginning. In TLS it is the client who begins.
	helloLimit = 10 * time.Second
	// halfClosedLimit is how long one direction may outlive the other.
	halfClosedLimit = time.Minute
	// acceptPause is the time until connections are accepted again after a failure, as for want of files.
	acceptPause = 100 * time.Millisecond
)

// Balancer forwards the connections of listeners to its servers. Make one with New.
type Balancer struct {
	opts Options
	open *connlimit.Counter
	// now and refused are what Stats says of connections.
	now     atomic.Int64
	refused atomic.Uint64

	mu      sync.Mutex
	servers map[string]*server
	ended   bool
	checks  sync.WaitGroup
}

// New makes a Balancer without servers.
func New(opts Options) *Balancer {
	opts.MaxConnections, opts.MaxPerClient = cmp.Or(opts.MaxConnections, 4096), cmp.Or(opts.MaxPerClient, 1024)
	if opts.Check == nil {
		opts.Check = Readyz
	}
	if opts.Changed == nil {
		opts.Changed = func() {}
	}
	return &Balancer{
		opts: opts, open: connlimit.NewCounter(opts.MaxConnections, opts.MaxPerClient), servers: map[string]*server{},
	}
}

// SetServers sets the addresses of the servers, each HOST:PORT. New ones are Down until their first check. Connections
// of those that are not among them any more are closed.
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

// Healthy returns how many servers have that health or a better one.
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

// Stats says what a Balancer does.
type Stats struct {
	// Servers are how many there are of each health.
	Servers map[Health]int
	// Connections are those of clients that are open.
	Connections int
	// Refused are those that were closed at once, since there were too many.
	Refused uint64
}

// Stats returns what the Balancer does at this moment.
func (b *Balancer) Stats() Stats {
	b.mu.Lock()
	defer b.mu.Unlock()
	stats := Stats{Servers: map[Health]int{}, Connections: int(b.now.Load()), Refused: b.refused.Load()}
	for _, s := range b.servers {
		stats.Servers[s.health]++
	}
	return stats
}

// Serve forwards connections until the context ends, and closes the listener. Then it ends the connections and checks,
// and the Balancer can not be used any more.
func (b *Balancer) Serve(ctx context.Context, listener net.Listener) error {
	stop := context.AfterFunc(ctx, func() { _ = listener.Close() })
	defer stop()
	var connections sync.WaitGroup
	defer func() {
		b.end()
		connections.Wait()
		b.checks.Wait()
	}()
	for {
		client, err := listener.Accept()
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, net.ErrClosed):
			return fmt.Errorf("accepting connections at %s: %w", listener.Addr(), err)
		case err != nil:
			b.opts.Log.Error("A connection cannot be accepted", "error", err)
			pause(ctx, acceptPause)
			continue
		}
		release, ok := b.open.Take(connlimit.OriginOf(client.RemoteAddr()))
		if !ok {
			b.refused.Add(1)
			_ = client.Close()
			continue
		}
		b.now.Add(1)
		connections.Go(func() {
			defer release()
			defer b.now.Add(-1)
			b.forward(ctx, client)
		})
	}
}

func (b *Balancer) end() {
	b.mu.Lock()
	b.ended = true
	b.mu.Unlock()
	b.SetServers(nil)
}

// candidates are the servers to try for a connection, in order: the ready ones, and only if there are none those that answer;
// first the one with the fewest connections.
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

// connect connects to a server. The connection belongs to the server until release, and is nil if there is no server.
func (b *Balancer) connect(ctx context.Context) (conn net.Conn, release func()) {
	for _, s := range b.candidates() {
		dialing, cancel := context.WithTimeout(ctx, dialLimit)
		conn, err := b.opts.Dial(dialing, s.address)
		cancel()
		if err != nil {
			b.opts.Log.Info("A server does not accept a connection", "server", s.address, "error", err)
			continue
		}
		if release, ok := b.own(s, conn); ok {
			return conn, release
		}
		_ = conn.Close()
	}
	return nil, nil
}

// own makes a connection a server's, unless that has been taken away.
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
