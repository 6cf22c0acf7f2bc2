// Package tasks runs slow work (a driver call, an eviction) outside the workers of controllers, while this
// process is the leader.
package tasks

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

// Runner runs a limited number of tasks concurrently while this process is the leader. Earlier tasks wait, and
// later ones are refused. Create one with New, and add it to a manager.
type Runner struct {
	// Panicked is called with the value of a panic of a task. It must not block, and must be set before the first task.
	// If nil, a panic terminates the process.
	Panicked func(value any)
	// Suspended reports whether no task may begin now, because leadership may have been lost. Tasks then wait until it returns
	// false. It must be set before the first task. Optional.
	Suspended func() bool

	slots   chan struct{}
	started chan struct{}
	stopped chan struct{}
	active  sync.WaitGroup
	count   atomic.Int64

	mu      sync.Mutex
	ctx     context.Context
	closing bool
}

// New returns a Runner for at most limit concurrent tasks. A limit below 1 means 1.
func New(limit int) *Runner {
	return &Runner{
		slots:   make(chan struct{}, max(limit, 1)),
		started: make(chan struct{}),
		stopped: make(chan struct{}),
	}
}

// Start runs tasks until ctx is canceled. It then waits for them, so that they do not overlap with those of the
// next leader. It must be called only once.
func (r *Runner) Start(ctx context.Context) error {
	r.mu.Lock()
	r.ctx = ctx
	r.mu.Unlock()
	close(r.started)

	<-ctx.Done()

	r.mu.Lock()
	r.closing = true
	r.mu.Unlock()
	close(r.stopped)
	r.active.Wait()
	return nil
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (r *Runner) NeedLeaderElection() bool { return true }

// Idle reports whether no task is running. Leadership must not be released before.
func (r *Runner) Idle() bool { return r.count.Load() == 0 }

// Go runs the task as soon as possible, with a context that is canceled with the loss of leadership. It does
// not block. It returns false if the task will never run because leadership was lost.
func (r *Runner) Go(task func(ctx context.Context)) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closing {
		return false
	}
	r.active.Add(1)
	go r.run(task)
	return true
}

func (r *Runner) run(task func(ctx context.Context)) {
	defer r.active.Done()
	select {
	case <-r.started:
	case <-r.stopped:
		return
	}
	select {
	case r.slots <- struct{}{}:
	case <-r.stopped:
		return
	}
	r.count.Add(1)
	defer func() {
		r.count.Add(-1)
		<-r.slots
	}()
	r.mu.Lock()
	ctx := r.ctx
	r.mu.Unlock()
	if r.mayBegin(ctx) {
		defer r.contain()
		task(ctx)
	}
}

// suspendedRetry is the interval at which a task checks whether it may begin.
const suspendedRetry = 100 * time.Millisecond

// mayBegin waits while the Runner is suspended. It reports whether this process is still the leader.
func (r *Runner) mayBegin(ctx context.Context) bool {
	for r.Suspended != nil && r.Suspended() {
		select {
		case <-time.After(suspendedRetry):
		case <-ctx.Done():
			return false
		}
	}
	return ctx.Err() == nil
}

// contain recovers from a panic of a task if that is possible.
func (r *Runner) contain() {
	if r.Panicked == nil {
		return
	}
	if value := recover(); value != nil {
		r.Panicked(value)
	}
}

// Waker is an event source for one controller. It wakes the controller for objects whose tasks have completed.
// Events from before the start of the controller are kept. The zero value is ready to use.
type Waker struct {
	mu      sync.Mutex
	queue   workqueue.TypedRateLimitingInterface[reconcile.Request]
	pending []reconcile.Request
}

// Start implements source.Source.
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

// Wake adds an object to the controller's queue.
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

// Registry calls a function for each driver that registers, including repeated registrations, as
// registry.Registry does.
type Registry interface {
	OnRegister(registered func(name string)) (stop func())
}

// Registrations returns an event source for the requests that waited for a driver when that driver registers.
func Registrations(drivers Registry, waiting func(ctx context.Context, name string) []reconcile.Request) source.Source {
	return source.Func(func(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		stop := drivers.OnRegister(func(name string) {
			for _, request := range waiting(ctx, name) {
				queue.Add(request)
			}
		})
		context.AfterFunc(ctx, stop)
		return nil
	})
}
