// Package expectations keeps controllers in step with the API server: none acts on a cache that is
// older than its own writes, and none that was refused waits for long until it asks again.
//
// It holds no truth: when it is lost, as in a restart, caches are filled anew.
package expectations

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/util/resourceversion"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Ledger remembers, for objects of one kind, the newest resource version that was
// written. The zero value is ready to use, from several goroutines.
type Ledger struct {
	mu    sync.Mutex
	wrote map[client.ObjectKey]string
}

// Wrote records that an object was written, as the API server answered.
func (l *Ledger) Wrote(object client.Object) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.wrote == nil {
		l.wrote = map[client.ObjectKey]string{}
	}
	key := client.ObjectKeyFromObject(object)
	if !older(object.GetResourceVersion(), l.wrote[key]) {
		l.wrote[key] = object.GetResourceVersion()
	}
}

// Fresh reports whether an object, as the cache has it, shows all that was written to it.
// Versions that cannot be compared count as fresh.
func (l *Ledger) Fresh(cached client.Object) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := client.ObjectKeyFromObject(cached)
	wrote, ok := l.wrote[key]
	if !ok {
		return true
	}
	if older(cached.GetResourceVersion(), wrote) {
		return false
	}
	delete(l.wrote, key)
	return true
}

// Forget drops what is known of an object.
func (l *Ledger) Forget(key client.ObjectKey) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.wrote, key)
}

// Patch writes what differs between before and object, status aside, and records it. It
// fails with a conflict if somebody else has written meanwhile: MCM, Gardener and
// autoscalers write the same objects. The object becomes what the API server answers.
func (l *Ledger) Patch(ctx context.Context, c client.Client, object, before client.Object) error {
	if err := c.Patch(ctx, object, Locked(before)); err != nil {
		return err
	}
	l.Wrote(object)
	return nil
}

// PatchStatus does the same for the status alone.
func (l *Ledger) PatchStatus(ctx context.Context, c client.Client, object, before client.Object) error {
	if err := c.Status().Patch(ctx, object, Locked(before)); err != nil {
		return err
	}
	l.Wrote(object)
	return nil
}

// Locked is a merge patch that fails if somebody else has written since before.
func Locked(before client.Object) client.Patch {
	return client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
}

func older(a, b string) bool {
	order, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && order < 0
}
