// Package expectations remembers what a controller wrote until its cache shows it.
//
// This state is not needed after a restart, because the caches are then filled from the API server.
package expectations

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/resourceversion"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// StaleCache is how long a pass waits for an event of its own writes before it runs again without one.
const StaleCache = time.Second

// Memory keeps one value for each object between passes. The zero value is ready to use.
//
// The passes over an object own its value. controller-runtime runs at most one of them at a time, so the value
// needs no lock. Only the parts that others read must be safe for concurrent use.
type Memory[T any] struct {
	mu     sync.Mutex
	values map[client.ObjectKey]*T
}

// Of returns the value of an object. The first time, it is the zero value.
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

// Find returns the value of an object, or nil if there is none.
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

// Writes remembers the latest resource version that was written for each object of a kind. The zero value is
// ready to use. It is safe for concurrent use.
type Writes struct {
	mu    sync.Mutex
	wrote map[client.ObjectKey]string
}

// Wrote records a write. The object must be as the API server returned it.
func (w *Writes) Wrote(object client.Object) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.wrote == nil {
		w.wrote = map[client.ObjectKey]string{}
	}
	key := client.ObjectKeyFromObject(object)
	if !older(object.GetResourceVersion(), w.wrote[key]) {
		w.wrote[key] = object.GetResourceVersion()
	}
}

// Fresh reports whether a cached object is at least as new as the last write to it. Versions that cannot be
// compared count as fresh.
func (w *Writes) Fresh(cached client.Object) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	key := client.ObjectKeyFromObject(cached)
	wrote, ok := w.wrote[key]
	if !ok {
		return true
	}
	if older(cached.GetResourceVersion(), wrote) {
		return false
	}
	delete(w.wrote, key)
	return true
}

// Forget drops the recorded version of an object.
func (w *Writes) Forget(key client.ObjectKey) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.wrote, key)
}

// Patch writes the differences between before and object, except the status, and records the new version. It
// fails with a conflict if another client wrote the object since before, because MCM, Gardener and autoscalers
// write the same objects. The object is replaced by the response of the API server.
func (w *Writes) Patch(ctx context.Context, c client.Client, object, before client.Object) error {
	if err := c.Patch(ctx, object, Locked(before)); err != nil {
		return err
	}
	w.Wrote(object)
	return nil
}

// PatchStatus is like Patch, but writes only the status.
func (w *Writes) PatchStatus(ctx context.Context, c client.Client, object, before client.Object) error {
	if err := c.Status().Patch(ctx, object, Locked(before)); err != nil {
		return err
	}
	w.Wrote(object)
	return nil
}

// Locked returns a merge patch that fails with a conflict if another client wrote the object since before.
func Locked(before client.Object) client.Patch {
	return client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
}

// older reports whether version a is known to precede version b.
func older(a, b string) bool {
	order, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && order < 0
}
