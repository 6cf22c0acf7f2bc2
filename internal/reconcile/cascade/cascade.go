// Package cascade determines what the deletion of an owner means for its dependents.
package cascade

import (
	"context"
	"errors"
	"fmt"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/millwright-dev/millwright/internal/reconcile/cascade/orphaning"
)

// CheckAlive returns a conflict if the owner no longer exists or is being deleted, according to the API server.
// The garbage collector would delete an object that is adopted by such an owner.
func CheckAlive(ctx context.Context, live client.Reader, owner client.Object, kind schema.GroupVersionKind) error {
	is := &metav1.PartialObjectMetadata{}
	is.SetGroupVersionKind(kind)
	err := live.Get(ctx, client.ObjectKeyFromObject(owner), is)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("reading %s %s: %w", kind.Kind, owner.GetName(), err)
	}
	if err != nil || is.UID != owner.GetUID() || !is.DeletionTimestamp.IsZero() {
		return apierrors.NewConflict(schema.GroupResource{Group: kind.Group, Resource: kind.Kind}, owner.GetName(), errors.New("it is being deleted"))
	}
	return nil
}

// Orphaned remembers which owners of a kind are being deleted without their dependents, for as long as they
// exist. The zero value is ready to use. It is safe for concurrent use.
//
// An event handler must record this, because a pass cannot detect it: the garbage collector's finalizer may be
// added and removed during a pass that creates a dependent. The garbage collector then misses the dependent,
// and the last version of the owner does not show the finalizer. After a restart, the information is lost.
type Orphaned struct {
	mu     sync.Mutex
	owners sets.Set[types.UID]
}

// Has reports whether an owner is being deleted without its dependents.
func (o *Orphaned) Has(owner client.Object) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.owners.Has(owner.GetUID())
}

func (o *Orphaned) see(owner client.Object) {
	if !orphaning.Pending(owner) {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.owners == nil {
		o.owners = sets.New[types.UID]()
	}
	o.owners.Insert(owner.GetUID())
}

func (o *Orphaned) forget(owner client.Object) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.owners.Delete(owner.GetUID())
}

// Handler records the events of the owners. It enqueues nothing.
func (o *Orphaned) Handler() handler.EventHandler {
	type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]
	return handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, _ queue) { o.see(e.Object) },
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, _ queue) { o.see(e.ObjectNew) },
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, _ queue) { o.forget(e.Object) },
	}
}
