package kubelet

import (
	"context"
	"sync"
	"time"
)

// keyedMutex is a mutex for each key. The zero value is ready.
type keyedMutex struct {
	mu   sync.Mutex
	held map[string]chan struct{}
}

// lock waits until nobody else holds key. Its error is that of ctx.
func (m *keyedMutex) lock(ctx context.Context, key string) (unlock func(), err error) {
	for {
		m.mu.Lock()
		released, busy := m.held[key]
		if !busy {
			break
		}
		m.mu.Unlock()
		select {
		case <-released:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	defer m.mu.Unlock()
	if m.held == nil {
		m.held = map[string]chan struct{}{}
	}
	released := make(chan struct{})
	m.held[key] = released
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.held, key)
		close(released)
	}, nil
}

// order is the rank of a scripted change.
type order struct {
	at     time.Time
	number int
}

// orders ensures that the latest of several changes wins, although jobs run concurrently
// and are repeated. The zero value is ready.
type orders struct {
	mu     sync.Mutex
	given  int
	newest map[string]order
}

// give returns the order of a change that is planned for a time.
func (o *orders) give(at time.Time) order {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.given++
	return order{at: at, number: o.given}
}

// take reports whether a change of key may be made: no later one was made already.
func (o *orders) take(key string, mine order) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	other, known := o.newest[key]
	if known && (other.at.After(mine.at) || other.at.Equal(mine.at) && other.number > mine.number) {
		return false
	}
	if o.newest == nil {
		o.newest = map[string]order{}
	}
	o.newest[key] = mine
	return true
}

func (o *orders) clear() {
	o.mu.Lock()
	defer o.mu.Unlock()
	clear(o.newest)
}
