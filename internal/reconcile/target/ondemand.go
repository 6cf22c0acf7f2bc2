package target

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	logf "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

// onDemand caches kinds while they are used. Each time, it fills a new cache, as a process does when it starts. A cache that
// is emptied and filled again could be read in between, and would lack its indexes.
type onDemand struct {
	kinds []client.Object
	// names are the kinds as the scheme names them.
	names []schema.GroupVersionKind
	// open returns a new cache, and failed is called with the errors of its lists and watches.
	open  func(failed toolscache.WatchErrorHandlerWithContext) (cache.Cache, error)
	index func(context.Context, client.FieldIndexer) error
	// linger is how long the kinds are cached after they were used.
	linger time.Duration

	running sync.WaitGroup
	mu      sync.Mutex
	// ctx is the context of Cluster.Start; nil before that.
	ctx context.Context
	// used is when the kinds were last used.
	used time.Time
	// current is the cache that is in use or is being filled; nil if there is none.
	current *demanded
	// waiting are the functions to call when current is filled, by the object that waits.
	waiting map[types.NamespacedName]func()
	watches []watch
}

// demanded is a cache on demand.
type demanded struct {
	// ctx is canceled when the cache stops.
	ctx context.Context
	// filled is nil until the cache has synced.
	filled cache.Cache
	// problem is why it has not synced yet.
	problem error
}

// watch is an event source whose events come from each cache on demand.
type watch struct {
	object  client.Object
	events  handler.EventHandler
	filters []predicate.Predicate
	queue   workqueue.TypedRateLimitingInterface[reconcile.Request]
}

func newOnDemand(options Options, open func(toolscache.WatchErrorHandlerWithContext) (cache.Cache, error)) (*onDemand, error) {
	d := &onDemand{kinds: options.Kinds, open: open, index: options.Index, linger: options.Linger, waiting: map[types.NamespacedName]func(){}}
	for _, object := range options.Kinds {
		name, err := apiutil.GVKForObject(object, options.Scheme)
		if err != nil {
			return nil, fmt.Errorf("kind of %T: %w", object, err)
		}
		d.names = append(d.names, name)
	}
	return d, nil
}

// has reports whether a kind is cached on demand.
func (d *onDemand) has(name schema.GroupVersionKind) bool {
	return d != nil && slices.Contains(d.names, name)
}

// start allows caches to be filled until ctx is canceled.
func (d *onDemand) start(ctx context.Context) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ctx = ctx
}

// wait waits until all caches have stopped, after the context of start is canceled.
func (d *onDemand) wait() {
	d.mu.Lock()
	d.ctx = nil // no other cache starts
	d.mu.Unlock()
	d.running.Wait()
}

// use implements Cluster.Use.
func (d *onDemand) use(key types.NamespacedName, wake func()) (filled bool, problem error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.used = time.Now()
	if d.current == nil && d.ctx != nil && d.ctx.Err() == nil {
		ctx, stop := context.WithCancel(d.ctx)
		d.current = &demanded{ctx: ctx}
		one := d.current
		d.running.Go(func() { d.serve(ctx, one) })
		d.running.Go(func() { defer stop(); d.awaitIdle(ctx) })
	}
	switch {
	case d.current == nil: // before the start, or during the shutdown
		return false, nil
	case d.current.filled != nil:
		return true, nil
	}
	if wake != nil {
		d.waiting[key] = wake
	}
	return false, d.current.problem
}

// serve fills a cache, and keeps it up to date until ctx is canceled.
func (d *onDemand) serve(ctx context.Context, one *demanded) {
	failed := func(ctx context.Context, r *toolscache.Reflector, err error) {
		d.failed(one, err)
		toolscache.DefaultWatchErrorHandler(ctx, r, err)
	}
	var made cache.Cache
	err := wait.PollUntilContextCancel(ctx, time.Second, true, func(ctx context.Context) (bool, error) {
		var err error
		if made, err = d.prepare(ctx, failed); err != nil {
			d.failed(one, err)
		}
		return err == nil, nil
	})
	if err != nil {
		return // no one needs it any longer
	}
	d.running.Go(func() {
		if err := made.Start(ctx); err != nil {
			d.failed(one, err)
		}
	})
	if made.WaitForCacheSync(ctx) {
		d.publish(one, made)
	}
}

// prepare returns a cache with the informers of all kinds and with indexes. It has not been started.
func (d *onDemand) prepare(ctx context.Context, failed toolscache.WatchErrorHandlerWithContext) (cache.Cache, error) {
	made, err := d.open(failed)
	if err != nil {
		return nil, err
	}
	for _, kind := range d.kinds {
		if _, err := made.GetInformer(ctx, kind, cache.BlockUntilSynced(false)); err != nil {
			return nil, fmt.Errorf("following %T: %w", kind, err)
		}
	}
	if d.index == nil {
		return made, nil
	}
	return made, d.index(ctx, made)
}

// failed records why a cache is not filled.
func (d *onDemand) failed(one *demanded, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	one.problem = err
}

// publish makes a filled cache readable, and wakes those who wait for it.
func (d *onDemand) publish(one *demanded, made cache.Cache) {
	d.mu.Lock()
	if d.current != one {
		d.mu.Unlock()
		return
	}
	one.filled = made
	for _, w := range d.watches {
		w.follow(one)
	}
	waiting := d.waiting
	d.waiting = map[types.NamespacedName]func(){}
	d.mu.Unlock()
	for _, wake := range waiting {
		wake()
	}
}

// awaitIdle waits until a cache has not been used for a while, or ctx is canceled. After that, the cache cannot be read.
func (d *onDemand) awaitIdle(ctx context.Context) {
	for {
		d.mu.Lock()
		left := d.linger - time.Since(d.used)
		if left <= 0 || ctx.Err() != nil {
			d.current = nil
			clear(d.waiting)
			d.mu.Unlock()
			return
		}
		d.mu.Unlock()
		select {
		case <-time.After(left):
		case <-ctx.Done():
		}
	}
}

// follow sends the events of a filled cache to the queue of the watch until the cache stops.
func (w watch) follow(from *demanded) {
	if err := source.Kind(from.filled, w.object, w.events, w.filters...).Start(from.ctx, w.queue); err != nil {
		logf.FromContext(from.ctx).Error(err, "watching the target cluster")
	}
}

// source returns an event source for a kind on demand.
func (d *onDemand) source(object client.Object, events handler.EventHandler, filters []predicate.Predicate) source.Source {
	return source.Func(func(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		d.mu.Lock()
		defer d.mu.Unlock()
		w := watch{object, events, filters, queue}
		d.watches = append(d.watches, w)
		if d.current != nil && d.current.filled != nil {
			w.follow(d.current)
		}
		return nil
	})
}

var errNotCached = errors.New("the cache of the target cluster is filled only while nodes are drained")

// reader returns the filled cache, or an error.
func (d *onDemand) reader() (client.Reader, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.current == nil || d.current.filled == nil {
		return nil, errNotCached
	}
	return d.current.filled, nil
}

// demandReader reads kinds on demand from their cache, and other kinds from another reader.
type demandReader struct {
	client.Reader
	scheme *runtime.Scheme
	demand *onDemand
}

// Get implements client.Reader.
func (r demandReader) Get(ctx context.Context, key client.ObjectKey, object client.Object, opts ...client.GetOption) error {
	from, err := r.of(object)
	if err != nil {
		return err
	}
	return from.Get(ctx, key, object, opts...)
}

// List implements client.Reader.
func (r demandReader) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	from, err := r.of(list)
	if err != nil {
		return err
	}
	return from.List(ctx, list, opts...)
}

// of returns the reader of an object or a list.
func (r demandReader) of(object runtime.Object) (client.Reader, error) {
	name, err := apiutil.GVKForObject(object, r.scheme)
	if err != nil {
		return nil, err
	}
	name.Kind = strings.TrimSuffix(name.Kind, "List")
	if !r.demand.has(name) {
		return r.Reader, nil
	}
	return r.demand.reader()
}
