package observe

import (
	"context"
	"sync"
	"time"
)

// countedContext is a context that is canceled when the driver checks it for the n-th time. It interrupts a call at
// each place where the driver checks its context, without a clock.
type countedContext struct {
	context.Context
	cancel context.CancelFunc

	mu        sync.Mutex
	remaining int
}

// checkKey is the key of the number of the check that cancels the driver's context.
type checkKey struct{}

// CancelAtCheck returns a context from which DriverContext derives one that is canceled when the driver checks it
// for the n-th time, counted from 1.
func CancelAtCheck(ctx context.Context, n int) context.Context {
	return context.WithValue(ctx, checkKey{}, n)
}

// DriverContext returns the context for the driver. It is ctx itself unless CancelAtCheck returned ctx.
func DriverContext(ctx context.Context) context.Context {
	n, ok := ctx.Value(checkKey{}).(int)
	if !ok {
		return ctx
	}
	ctx, cancel := context.WithCancel(ctx)
	return &countedContext{Context: ctx, cancel: cancel, remaining: n}
}

func (c *countedContext) countCheck() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.remaining--; c.remaining == 0 {
		c.cancel()
	}
}

// Done implements context.Context.
func (c *countedContext) Done() <-chan struct{} {
	c.countCheck()
	return c.Context.Done()
}

// Err implements context.Context.
func (c *countedContext) Err() error {
	c.countCheck()
	return c.Context.Err()
}

// Expired returns a context whose deadline has passed.
func Expired(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithDeadline(ctx, time.Now().Add(-time.Second))
}

// Canceled returns a context that was canceled.
func Canceled(ctx context.Context) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	cancel()
	return ctx
}
