// Package expectations remembers what a controller wrote until its cache shows it.
//
// None of it is needed for a right decision after a restart: caches are then filled anew.
package expectations

import (
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// StaleCache is how long a pass waits for the cache to show what this process wrote. Normally the
// event of that write comes first.
const StaleCache = time.Second

// RateLimiter returns when an object is reconciled again after a failure: after 5ms, doubled with
// each failure in a row, up to a minute. With controller-runtime's default it would be up to a
// quarter of an hour, and no event says that an outage, a quota or a webhook's refusal is over.
func RateLimiter() workqueue.TypedRateLimiter[reconcile.Request] {
	return workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](5*time.Millisecond, time.Minute)
}

// Memory keeps one value for each object from pass to pass, and forgets it as a whole. The zero
// value is ready to use.
//
// The passes over an object own its value. controller-runtime runs one of them at a time, so the
// value needs no lock. Only what others read of it has to be safe for concurrent use.
type Memory[T any] struct {
	mu     sync.Mutex
	values map[client.ObjectKey]*T
}

// Of returns the value of an object, the zero value the first time.
func (m *Memory[T]) Of(key client.ObjectKey) *T {
	m.mu.Lock()
	defer m.mu.Unlock()
	value := m.values[key]
	if value == nil {
		if m.values == nil {
			m.values = map[client.ObjectKey]*T{}
		}
		value = new(T)
		m.values[key] = value
	}
	return value
}

// Find returns the value of an object, nil if there is none.
func (m *Memory[T]) Find(key client.ObjectKey) *T {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.values[key]
}

// Forget drops the value of an object.
func (m *Memory[T]) Forget(key client.ObjectKey) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.values, key)
}
