// Package freshness keeps a controller from acting on a cache that is older than the
// controller's own writes.
//
// It holds no truth: when it is lost, as in a restart, caches are filled anew.
package freshness

import (
	"sync"

	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// Ledger remembers, by key, the newest resource version that was written. The zero
// value is ready to use, from several goroutines.
type Ledger[K comparable] struct {
	mu    sync.Mutex
	wrote map[K]string
}

// Wrote records that an object of the key was written at a resource version.
func (l *Ledger[K]) Wrote(key K, version string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.wrote == nil {
		l.wrote = map[K]string{}
	}
	if !older(version, l.wrote[key]) {
		l.wrote[key] = version
	}
}

// Fresh tells whether a cache that has seen a resource version has seen all that was
// written for the key. Versions that cannot be compared count as fresh.
func (l *Ledger[K]) Fresh(key K, seen string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	wrote, ok := l.wrote[key]
	if !ok {
		return true
	}
	if older(seen, wrote) {
		return false
	}
	delete(l.wrote, key)
	return true
}

// Forget drops what is known of the key.
func (l *Ledger[K]) Forget(key K) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.wrote, key)
}

func older(a, b string) bool {
	order, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && order < 0
}
