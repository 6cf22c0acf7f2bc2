package observe

import (
	"context"
	"sync"
	"time"
)

// ending is a context that ends when the driver looks at it for a certain time, so that a call can
// be interrupted at each place where it looks, without a clock.
type ending struct {
	context.Context
	cancel context.CancelFunc

	mu    sync.Mutex
	looks int
}

// lookKey is the key of the look at which the driver's context ends.
type lookKey struct{}

// EndsAt returns a context from which EndingAt makes one that ends when somebody looks at it for the
// given time, counted from 1.
func EndsAt(ctx context.Context, look int) context.Context {
	return context.WithValue(ctx, lookKey{}, look)
}

// EndingAt returns the context for the driver: the same unless it is one of EndsAt.
func EndingAt(ctx context.Context) context.Context {
	look, ok := ctx.Value(lookKey{}).(int)
	if !ok {
		return ctx
	}
	ctx, cancel := context.WithCancel(ctx)
	return &ending{Context: ctx, cancel: cancel, looks: look}
}

func (e *ending) look() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.looks--; e.looks == 0 {
		e.cancel()
	}
}

// Done implements context.Context.
func (e *ending) Done() <-chan struct{} {
	e.look()
	return e.Context.Done()
}

// Err implements context.Context.
func (e *ending) Err() error {
	e.look()
	return e.Context.Err()
}

// Expired returns a context whose deadline has passed.
func Expired(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithDeadline(ctx, time.Now().Add(-time.Second))
}

// Cancelled returns a context that was cancelled.
func Cancelled(ctx context.Context) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	cancel()
	return ctx
}
