package loadbalancer

import (
	"context"
	"net"
	"time"
)

// Health says what a server can be used for.
type Health int

const (
	// Down does not answer, or has not been asked yet.
	Down Health = iota
	// Unready answers that it is not ready: it is starting or ending, or what it needs is missing.
	Unready
	// Ready is for new connections.
	Ready
)

// String implements fmt.Stringer.
func (h Health) String() string { return [...]string{"down", "unready", "ready"}[h] }

// server is one to which connections are forwarded. The Balancer's lock guards all but the first two fields.
type server struct {
	address string
	stop    context.CancelFunc
	health  Health
	// missed are the checks in a row without an answer.
	missed int
	conns  map[net.Conn]struct{}
}

// end ends the checks and connections. The lock is held.
func (s *server) end() {
	s.stop()
	s.disconnect()
}

// disconnect closes the connections; those who forward them notice. The lock is held.
func (s *server) disconnect() {
	for conn := range s.conns {
		_ = conn.Close()
	}
}

// watch checks a server until the context ends.
func (b *Balancer) watch(ctx context.Context, s *server) {
	for first := true; ctx.Err() == nil; first = false {
		health, err := b.check(ctx, s)
		if ctx.Err() != nil {
			return
		}
		changed := b.observe(s, health)
		if changed || first { // why it does not answer from the beginning is not said again
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
		err = ctx.Err() // not that the connection was closed for that
	}
	return health, err
}

// observe notes the result of a check, and reports whether the health of the server is another one now. What a server says
// counts at once; that it says nothing may be for a packet that was lost, or a moment without processor time.
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

// pause waits, unless the context ends before.
func pause(ctx context.Context, length time.Duration) {
	timer := time.NewTimer(length)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
