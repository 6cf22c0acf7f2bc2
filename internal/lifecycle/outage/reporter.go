package outage

import (
	"context"
	"sync/atomic"
)

// Reporter reports to a monitoring system whether timeouts are frozen. Create one with NewReporter, and add it
// to a manager.
type Reporter struct {
	monitor  atomic.Pointer[Monitor]
	requests chan struct{}
}

// NewReporter creates a Reporter.
func NewReporter() *Reporter { return &Reporter{requests: make(chan struct{}, 1)} }

// Use sets the Monitor to report on. It does nothing if the Reporter is nil.
func (r *Reporter) Use(m *Monitor) {
	if r != nil {
		r.monitor.Store(m)
	}
}

// Frozen reports whether timeouts are frozen, according to the last check of the API servers. It returns
// immediately, and makes Start check again if the last check is too old.
func (r *Reporter) Frozen() bool {
	select {
	case r.requests <- struct{}{}:
	default: // Start is about to check
	}
	m := r.monitor.Load()
	return m != nil && m.frozen()
}

// NeedLeaderElection returns true, because only the leader counts timeouts.
func (r *Reporter) NeedLeaderElection() bool { return true }

// Start checks the API servers after calls of Frozen, at most as often as the Monitor does for passes, until
// ctx is canceled. Passes alone are not enough, because none of them checks while all Machines are healthy.
func (r *Reporter) Start(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.requests:
			if m := r.monitor.Load(); m != nil {
				m.observe(ctx, m.opts.Period)
			}
		}
	}
}

// frozen reports whether a server did not respond to the last check, or the target's cache has not synced.
func (m *Monitor) frozen() bool {
	if m.opts.Target != nil && !m.opts.Target.Ready() {
		return true
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.servers {
		if !s.failing.IsZero() {
			return true
		}
	}
	return false
}
