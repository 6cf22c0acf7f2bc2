package tasks

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// Waker wakes a controller for an object when a task for it has ended. It is a source
// of events for one controller; what is woken before the controller starts is kept.
// The zero value is ready to use.
type Waker struct {
	mu      sync.Mutex
	queue   workqueue.TypedRateLimitingInterface[reconcile.Request]
	pending []reconcile.Request
}

// Start takes the queue of the controller.
func (w *Waker) Start(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.queue = queue
	for _, request := range w.pending {
		queue.Add(request)
	}
	w.pending = nil
	return nil
}

// Wake puts the object in the controller's queue.
func (w *Waker) Wake(key types.NamespacedName) {
	w.mu.Lock()
	defer w.mu.Unlock()
	request := reconcile.Request{NamespacedName: key}
	if w.queue == nil {
		w.pending = append(w.pending, request)
		return
	}
	w.queue.Add(request)
}
