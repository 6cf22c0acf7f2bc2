// Package follow watches the objects of a cluster and calls a function whenever they change.
package follow

import (
	"context"
	"fmt"
	"time"

	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Follower caches objects. Callers must not modify the objects it returns.
type Follower struct {
	client.Reader

	changed chan struct{} // holds one token when something has changed
	link    *link
}

// Problem returns why changes are currently not received, or "" if they are.
func (f *Follower) Problem() string { return f.link.problem() }

// Start watches objects of the given kinds, restricted by the options, until ctx is done. It
// returns when the cache is filled. Objects that the user has no permission to read are retried
// forever, without a log line.
func Start(ctx context.Context, config *rest.Config, options cache.Options, kinds ...client.Object) (*Follower, error) {
	f := &Follower{changed: make(chan struct{}, 1)}
	f.link = newLink(f.notify)
	config = rest.CopyConfig(config)
	config.Wrap(f.link.wrap)
	options.DefaultTransform = cache.TransformStripManagedFields()
	options.DefaultUnsafeDisableDeepCopy = ptr.To(true)
	options.DefaultWatchErrorHandler = func(context.Context, *toolscache.Reflector, error) {}
	copies, err := cache.New(config, options)
	if err != nil {
		return nil, fmt.Errorf("following the cluster: %w", err)
	}
	f.Reader = copies
	handler := toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { f.notify() }, UpdateFunc: func(_, _ any) { f.notify() }, DeleteFunc: func(any) { f.notify() },
	}
	go copies.Start(ctx) // returns when ctx is done; informers report errors
	for _, kind := range kinds {
		informer, err := copies.GetInformer(ctx, kind)
		if err == nil {
			_, err = informer.AddEventHandler(handler)
		}
		if err != nil {
			return nil, fmt.Errorf("following %T: %w", kind, err)
		}
	}
	// GetInformer does not wait for a cache that is not started yet.
	if !copies.WaitForCacheSync(ctx) {
		return nil, ctx.Err()
	}
	return f, nil
}

// notify makes Until call its function again.
func (f *Follower) notify() {
	select {
	case f.changed <- struct{}{}:
	default:
	}
}

// Until calls see immediately and after every change, until it returns true or an error. Two calls
// are at least pace apart. Without a change, see is called again after beat; if beat is 0, only
// changes cause calls.
func (f *Follower) Until(ctx context.Context, pace, beat time.Duration, see func() (enough bool, err error)) error {
	var again <-chan time.Time
	if beat > 0 {
		ticker := time.NewTicker(beat)
		defer ticker.Stop()
		again = ticker.C
	}
	for {
		pause := time.After(pace)
		if enough, err := see(); enough || err != nil {
			return err
		}
		select {
		case <-pause:
		case <-ctx.Done():
			return ctx.Err()
		}
		select {
		case <-f.changed:
		case <-again:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
