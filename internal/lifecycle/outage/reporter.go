package outage

import (
	"context"
	"sync/atomic"
)

// Reporter reports to a monitoring system whether timeouts stand still. Make one with NewReporter, and
// add it to a manager.
type Reporter struct {
	monitor atomic.Pointer[Monitor]
	wanted  chan struct{}
}

// NewReporter makes a Reporter.
func NewReporter() *Reporter { return &Reporter{wanted: make(chan struct{}, 1)} }

// Use has a Monitor reported on. A nil Reporter reports on none.
func (r *Reporter) Use(m *Monitor) {
	if r != nil {
		r.monitor.Store(m)
	}
}

// Frozen reports whether timeouts stand still, by the last answers of the API servers. It returns at
// once, and has Start ask again if the answers are old.
func (r *Reporter) Frozen() bool {
	select {
	case r.wanted <- struct{}{}:
	default: // Start is about to ask
	}
	m := r.monitor.Load()
	return m != nil && m.frozen()
}

// NeedLeaderElection is true: only the leader counts timeouts.
func (r *Reporter) NeedLeaderElection() bool { return true }

// Start asks the API servers after calls of Frozen, at most as often as the Monitor does for passes,
// until ctx ends. Passes alone would not do: while all Machines are well none of them asks.
func (r *Reporter) Start(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.wanted:
			if m := r.monitor.Load(); m != nil {
				m.observe(ctx, m.opts.Period)
			}
		}
	}
}

// frozen reports whether a server did not answer when it was last asked, or the target's cache is not
// complete.
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
