package loadbalancer

import (
	"context"
	"net"
	"time"
)

// Health describes what a server can be used for.
type Health int

const (
	// Down servers do not respond, or have not been checked yet.
	Down Health = iota
	// Unready servers respond that they are not ready: they are starting or stopping, or lack something they
	// need.
	Unready
	// Ready servers accept new connections.
	Ready
)

// String implements fmt.Stringer.
func (h Health) String() string { return [...]string{"down", "unready", "ready"}[h] }

// server is a server to which connections are forwarded. The Balancer's lock guards all but the first two
// fields.
type server struct {
	address string
	stop    context.CancelFunc
	health  Health
	// missed is the number of consecutive checks without a response.
	missed int
	conns  map[net.Conn]struct{}
}

// end stops the checks and closes the connections. The lock is held.
func (s *server) end() {
	s.stop()
	s.disconnect()
}

// disconnect closes the connections; the goroutines that forward them notice. The lock is held.
func (s *server) disconnect() {
	for conn := range s.conns {
		_ = conn.Close()
	}
}

// watch checks a server until the context is done.
func (b *Balancer) watch(ctx context.Context, s *server) {
	for first := true; ctx.Err() == nil; first = false {
		health, err := b.check(ctx, s)
		if ctx.Err() != nil {
			return
		}
		changed := b.observe(s, health)
		if changed || first { // later failures of a server that never responded are not logged
			b.opts.Log.Info("A server was checked", "server", s.address, "health", health.String(), "error", err)
		}
		if changed {
			b.opts.Changed()
		}
		pause(ctx, checkEvery)
	}
}

func (b *Balancer) check(ctx context.Context, s *server) (Health, error) {
	ctx, cancel := context.WithTimeout(ctx, checkLimit)
	defer cancel()
	conn, err := b.opts.Dial(ctx, s.address)
	if err != nil {
		return Down, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	health, err := b.opts.Check(ctx, conn)
	if err != nil && ctx.Err() != nil {
		err = ctx.Err() // rather than the error of the closed connection
	}
	return health, err
}

// observe records the result of a check, and reports whether the health of the server has changed. A response
// counts immediately; a missing response may be due to a lost packet or a busy processor.
func (b *Balancer) observe(s *server, health Health) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	was := s.health
	if health != Down {
		s.missed, s.health = 0, health
		return s.health != was
	}
	if s.missed++; s.missed >= failures {
		s.health = Down
		s.disconnect()
	}
	return s.health != was
}

// pause waits, unless the context is done earlier.
func pause(ctx context.Context, length time.Duration) {
	timer := time.NewTimer(length)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
