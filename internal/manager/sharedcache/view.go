package sharedcache

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/util/wait"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
)

// View is the part of a Cache in one namespace. It implements cache.Cache.
type View struct {
	shared    *Cache
	namespace string
	leads     <-chan struct{}
	failed    func(any)
	// ready is closed when the view contains everything that earlier leaders wrote.
	ready chan struct{}
	// stopped is closed when Start returns.
	stopped chan struct{}

	mu       sync.Mutex
	handlers map[*registration]struct{}
	// begun is set when the handlers begin to receive events.
	begun bool
}

var _ cache.Cache = (*View)(nil)

// View returns the view of a namespace. It can be read once leads is closed, which means that this process is the
// leader of the namespace, and Start has compared the cache with the API server. failed is called with the value of a
// panic of an event handler; it must not block.
func (c *Cache) View(namespace string, leads <-chan struct{}, failed func(any)) *View {
	return &View{
		shared: c, namespace: namespace, leads: leads, failed: failed,
		ready: make(chan struct{}), stopped: make(chan struct{}), handlers: map[*registration]struct{}{},
	}
}

// freshPeriod is the time between two comparisons of the cache with the API server.
const freshPeriod = 200 * time.Millisecond

// Start makes the view readable once this process is the leader, and removes all event handlers when ctx is done.
func (v *View) Start(ctx context.Context) error {
	defer v.removeHandlers()
	defer close(v.stopped)
	select {
	case <-v.leads:
	case <-ctx.Done():
		return nil
	}
	for _, kind := range v.shared.Kinds {
		var needed *metav1.PartialObjectMetadataList
		err := wait.PollUntilContextCancel(ctx, freshPeriod, true, func(ctx context.Context) (bool, error) {
			return v.isFresh(ctx, kind, &needed), nil
		})
		if err != nil {
			return nil // ctx is done
		}
	}
	close(v.ready)
	v.beginHandlers()
	<-ctx.Done()
	return nil
}

// beginHandlers passes events to the handlers. They begin only now because they read the view, and the events of other
// views would wait until it is ready.
func (v *View) beginHandlers() {
	v.mu.Lock()
	v.begun = true
	added := slices.Collect(maps.Keys(v.handlers))
	v.mu.Unlock()
	for _, handler := range added {
		handler.begin()
	}
}

func (v *View) removeHandlers() {
	v.mu.Lock()
	defer v.mu.Unlock()
	for handler := range v.handlers {
		handler.remove()
	}
	clear(v.handlers)
}

// isFresh reports whether the cache contains all objects of a kind as the API server had them at the first call, or newer.
// It returns false if that is not known, for example because an object was deleted after it was listed. needed contains what
// the first call listed, without the objects that were deleted since. Later versions are not needed: otherwise, a
// namespace whose objects change all the time would never be fresh.
func (v *View) isFresh(ctx context.Context, kind client.Object, needed **metav1.PartialObjectMetadataList) bool {
	gvk, err := apiutil.GVKForObject(kind, v.shared.Scheme)
	if err != nil {
		return false
	}
	informer, err := v.shared.All.GetInformer(ctx, kind)
	if err != nil {
		return false
	}
	indexed, ok := informer.(toolscache.SharedIndexInformer)
	if !ok {
		return false
	}
	stored := &metav1.PartialObjectMetadataList{}
	stored.SetGroupVersionKind(gvk.GroupVersion().WithKind(gvk.Kind + "List"))
	if err := v.shared.Live.List(ctx, stored, client.InNamespace(v.namespace)); err != nil {
		return false // a cache would not be filled either
	}
	if *needed == nil {
		*needed = stored
	}
	keep(*needed, stored)
	cached, err := indexed.GetIndexer().ByIndex(toolscache.NamespaceIndex, v.namespace)
	return err == nil && newerThan(cached, *needed)
}

// keep removes the objects from a list that a later list does not contain.
func keep(list, later *metav1.PartialObjectMetadataList) {
	exists := map[types.UID]bool{}
	for i := range later.Items {
		exists[later.Items[i].UID] = true
	}
	list.Items = slices.DeleteFunc(list.Items, func(object metav1.PartialObjectMetadata) bool { return !exists[object.UID] })
}

// newerThan reports whether the cached objects are at least as new as the stored ones.
func newerThan(cached []any, stored *metav1.PartialObjectMetadataList) bool {
	versions := map[types.UID]string{}
	for _, object := range cached {
		accessor, err := meta.Accessor(object)
		if err != nil {
			return false
		}
		versions[accessor.GetUID()] = accessor.GetResourceVersion()
	}
	for i := range stored.Items {
		object := &stored.Items[i]
		if !atLeast(versions[object.UID], object.ResourceVersion) {
			return false
		}
		delete(versions, object.UID)
	}
	for _, version := range versions { // created after the list, or deleted before it
		if !atLeast(version, stored.ResourceVersion) {
			return false
		}
	}
	return true
}

func atLeast(version, than string) bool {
	order, err := resourceversion.CompareResourceVersion(version, than)
	return err == nil && order >= 0
}

var errStopped = errors.New("the cache has stopped")

// await waits until the view can be read. As with a cache of a manager, it cannot before this process is the leader.
func (v *View) await(ctx context.Context) error {
	select {
	case <-v.ready:
		return nil
	default:
	}
	select {
	case <-v.leads:
	default:
		return &cache.ErrCacheNotStarted{}
	}
	select {
	case <-v.ready:
		return nil
	case <-v.stopped:
		return errStopped
	case <-ctx.Done():
		return ctx.Err()
	}
}

// WaitForCacheSync implements cache.Cache. It returns immediately if this process is not the leader yet, because a
// manager waits for its caches before it takes part in the election.
func (v *View) WaitForCacheSync(ctx context.Context) bool {
	select {
	case <-v.leads:
		return v.await(ctx) == nil
	default:
		return true
	}
}

// Get implements client.Reader. Objects of other namespaces cannot be read.
func (v *View) Get(ctx context.Context, key client.ObjectKey, object client.Object, opts ...client.GetOption) error {
	if key.Namespace != v.namespace {
		return fmt.Errorf("reading %s: this cache contains only the namespace %s", key, v.namespace)
	}
	if err := v.await(ctx); err != nil {
		return err
	}
	return v.shared.All.Get(ctx, key, object, opts...)
}

// List implements client.Reader. Without a namespace, it lists the objects of the view's namespace.
func (v *View) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	options := (&client.ListOptions{}).ApplyOptions(opts)
	if options.Namespace != "" && options.Namespace != v.namespace {
		return fmt.Errorf("listing objects of namespace %s: this cache contains only the namespace %s", options.Namespace, v.namespace)
	}
	if err := v.await(ctx); err != nil {
		return err
	}
	options.Namespace = v.namespace
	return v.shared.All.List(ctx, list, options)
}

// IndexField implements client.FieldIndexer.
func (v *View) IndexField(ctx context.Context, object client.Object, field string, values client.IndexerFunc) error {
	return v.shared.index(ctx, object, field, values)
}

// GetInformer implements cache.Informers.
func (v *View) GetInformer(ctx context.Context, object client.Object, opts ...cache.InformerGetOption) (cache.Informer, error) {
	informer, err := v.shared.All.GetInformer(ctx, object, opts...)
	return v.informer(informer, err)
}

// GetInformerForKind implements cache.Informers.
func (v *View) GetInformerForKind(ctx context.Context, kind schema.GroupVersionKind, opts ...cache.InformerGetOption) (cache.Informer, error) {
	informer, err := v.shared.All.GetInformerForKind(ctx, kind, opts...)
	return v.informer(informer, err)
}

func (v *View) informer(shared cache.Informer, err error) (cache.Informer, error) {
	if err != nil {
		return nil, err
	}
	events, err := v.shared.feed(shared)
	if err != nil {
		return nil, err
	}
	return &informer{Informer: shared, view: v, events: events}, nil
}

// RemoveInformer implements cache.Informers. It has no effect, because other views use the informer.
func (v *View) RemoveInformer(context.Context, client.Object) error { return nil }

// informer is an informer of the objects in the namespace of a view.
type informer struct {
	cache.Informer
	view   *View
	events *feed
}

// AddEventHandler implements cache.Informer.
func (i *informer) AddEventHandler(handler toolscache.ResourceEventHandler) (toolscache.ResourceEventHandlerRegistration, error) {
	added := i.events.handler(i.view.namespace, handler, i.view.failed)
	begun, err := i.view.add(added)
	if err != nil {
		return nil, err
	}
	if begun {
		added.begin()
	}
	return added, nil
}

// add adds a handler. It reports whether the caller must begin it.
func (v *View) add(handler *registration) (begun bool, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	select {
	case <-v.stopped:
		return false, errStopped
	default:
	}
	v.handlers[handler] = struct{}{}
	return v.begun, nil
}

// AddEventHandlerWithResyncPeriod implements cache.Informer. All views have the resync period of the Cache.
func (i *informer) AddEventHandlerWithResyncPeriod(handler toolscache.ResourceEventHandler, _ time.Duration) (toolscache.ResourceEventHandlerRegistration, error) {
	return i.AddEventHandler(handler)
}

// AddEventHandlerWithOptions implements cache.Informer. All views have the resync period of the Cache.
func (i *informer) AddEventHandlerWithOptions(handler toolscache.ResourceEventHandler, _ toolscache.HandlerOptions) (toolscache.ResourceEventHandlerRegistration, error) {
	return i.AddEventHandler(handler)
}

// RemoveEventHandler implements cache.Informer.
func (i *informer) RemoveEventHandler(handle toolscache.ResourceEventHandlerRegistration) error {
	if added, ours := handle.(*registration); ours {
		added.remove()
		i.view.mu.Lock()
		defer i.view.mu.Unlock()
		delete(i.view.handlers, added)
	}
	return nil
}
