// Package follow shows the objects of a cluster whenever they have changed.
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

// Follower caches objects. What it reads must not be changed.
type Follower struct {
	client.Reader

	changed chan struct{} // holds one token when something has changed
	link    *link
}

// Problem returns why changes are not seen now; empty if they are.
func (f *Follower) Problem() string { return f.link.problem() }

// Start follows the objects of some kinds, within the options, until the context ends. It returns when
// the cache is filled. It retries what it may not read for ever, without a log line.
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
	go copies.Start(ctx) // ends with the context; errors are those of informers
	for _, kind := range kinds {
		informer, err := copies.GetInformer(ctx, kind)
		if err == nil {
			_, err = informer.AddEventHandler(handler)
		}
		if err != nil {
			return nil, fmt.Errorf("following %T: %w", kind, err)
		}
	}
	// GetInformer does not wait for a cache that has not started.
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

// Until calls a function at once and whenever something has changed, until it returns true or an
// error. At least pace passes between two calls. Without a change it is called again after beat, never
// if that is 0.
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
