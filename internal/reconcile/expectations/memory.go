// Package expectations remembers what a controller wrote until its cache shows it.
//
// None of it is needed for a right decision after a restart: caches are then filled anew.
package expectations

import (
	"sync"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

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
