package expectations

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/util/resourceversion"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Writes remembers the newest resource version that was written to each of some objects of one
// kind. The zero value is ready to use, also concurrently.
type Writes struct {
	mu    sync.Mutex
	wrote map[client.ObjectKey]string
}

// Wrote records that an object was written, as the API server answered.
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

// Fresh reports whether a cached object is no older than the last write to it. Versions that cannot
// be compared count as fresh.
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

// Forget drops the version of an object.
func (w *Writes) Forget(key client.ObjectKey) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.wrote, key)
}

// Patch writes the differences between before and object, except the status, and records the new
// version. It fails with a conflict if somebody else has written since before: MCM, Gardener and
// autoscalers write the same objects. The object becomes what the API server returns.
func (w *Writes) Patch(ctx context.Context, c client.Client, object, before client.Object) error {
	if err := c.Patch(ctx, object, Locked(before)); err != nil {
		return err
	}
	w.Wrote(object)
	return nil
}

// PatchStatus is Patch for the status alone.
func (w *Writes) PatchStatus(ctx context.Context, c client.Client, object, before client.Object) error {
	if err := c.Status().Patch(ctx, object, Locked(before)); err != nil {
		return err
	}
	w.Wrote(object)
	return nil
}

// Locked returns a merge patch that fails if somebody else has written since before.
func Locked(before client.Object) client.Patch {
	return client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
}

// older reports whether one resource version came before another. Versions that cannot be compared
// do not.
func older(a, b string) bool {
	order, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && order < 0
}
