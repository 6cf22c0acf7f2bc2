// Package cascade finds owners that are deleted without their dependents.
package cascade

import (
	"context"
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// Orphaning reports whether the garbage collector has yet to take the dependents from an owner that
// is being deleted. It takes those that it knows, and then its finalizer.
func Orphaning(owner client.Object) bool {
	return owner.GetDeletionTimestamp() != nil && slices.Contains(owner.GetFinalizers(), metav1.FinalizerOrphanDependents)
}

// Orphaned remembers which owners of a kind are deleted without their dependents, for as long as
// they exist. The garbage collector's finalizer may come and go during one pass, which creates a
// dependent that the collector does not know. Every version of an owner passes an event handler,
// while a pass sees only the last one. A process that starts later does not know.
//
// The zero value is ready to use, also concurrently.
type Orphaned struct {
	mu     sync.Mutex
	owners map[types.UID]struct{}
}

// Has reports whether an owner is deleted without its dependents.
func (o *Orphaned) Has(owner client.Object) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	_, known := o.owners[owner.GetUID()]
	return known
}

func (o *Orphaned) see(owner client.Object) {
	if !Orphaning(owner) {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.owners == nil {
		o.owners = map[types.UID]struct{}{}
	}
	o.owners[owner.GetUID()] = struct{}{}
}

func (o *Orphaned) forget(owner client.Object) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.owners, owner.GetUID())
}

// Handler is to be registered for the events of the owners. It enqueues nothing.
func (o *Orphaned) Handler() handler.EventHandler {
	type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]
	return handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, _ queue) { o.see(e.Object) },
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, _ queue) { o.see(e.ObjectNew) },
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, _ queue) { o.forget(e.Object) },
	}
}
