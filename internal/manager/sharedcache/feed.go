package sharedcache

import (
	"slices"
	"sync"

	toolscache "k8s.io/client-go/tools/cache"
)

// feed passes the events of one informer to the handlers of the views, each with the events of its namespace. With a
// handler of the informer for each view, each event would be passed to all of them.
type feed struct {
	mu sync.Mutex
	// known are the objects by namespace and name, as of the last event, so that a new handler receives exactly the
	// events after the objects that it is given first.
	known    map[string]map[string]any
	handlers map[string][]*registration
}

func newFeed() *feed {
	return &feed{known: map[string]map[string]any{}, handlers: map[string][]*registration{}}
}

// handler returns a handler for a namespace, which receives no events before begin. failed is called with the value of a
// panic of the handler.
func (f *feed) handler(namespace string, handler toolscache.ResourceEventHandler, failed func(any)) *registration {
	return &registration{feed: f, namespace: namespace, handler: handler, failed: failed, synced: make(chan struct{})}
}

// OnAdd implements toolscache.ResourceEventHandler.
func (f *feed) OnAdd(object any, initial bool) {
	f.pass(object, func(objects map[string]any, name string) { objects[name] = object }, func(h toolscache.ResourceEventHandler) { h.OnAdd(object, initial) })
}

// OnUpdate implements toolscache.ResourceEventHandler.
func (f *feed) OnUpdate(before, now any) {
	f.pass(now, func(objects map[string]any, name string) { objects[name] = now }, func(h toolscache.ResourceEventHandler) { h.OnUpdate(before, now) })
}

// OnDelete implements toolscache.ResourceEventHandler.
func (f *feed) OnDelete(object any) {
	f.pass(object, func(objects map[string]any, name string) { delete(objects, name) }, func(h toolscache.ResourceEventHandler) { h.OnDelete(object) })
}

// pass records an event and passes it to the handlers of the object's namespace.
func (f *feed) pass(object any, record func(objects map[string]any, name string), to func(toolscache.ResourceEventHandler)) {
	key, err := toolscache.DeletionHandlingObjectToName(object)
	if err != nil {
		return // not an object, which informers do not send
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.known[key.Namespace] == nil {
		f.known[key.Namespace] = map[string]any{}
	}
	record(f.known[key.Namespace], key.Name)
	if len(f.known[key.Namespace]) == 0 {
		delete(f.known, key.Namespace)
	}
	for _, one := range f.handlers[key.Namespace] {
		one.call(func() { to(one.handler) })
	}
}

// registration is a handler of a view.
type registration struct {
	feed      *feed
	namespace string
	handler   toolscache.ResourceEventHandler
	failed    func(any)
	// synced is closed when the handler has received the known objects.
	synced chan struct{}
	// removed is protected by the lock of the feed.
	removed bool
}

// begin passes the known objects to the handler, and then all events. It must be called only once. Other views do not
// receive events while a handler is called, so it must not wait for a view.
func (r *registration) begin() {
	r.feed.mu.Lock()
	defer r.feed.mu.Unlock()
	if r.removed {
		return
	}
	for _, object := range r.feed.known[r.namespace] {
		r.call(func() { r.handler.OnAdd(object, true) })
	}
	r.feed.handlers[r.namespace] = append(r.feed.handlers[r.namespace], r)
	close(r.synced)
}

// call calls the handler. A panic in it must not stop the events of other views.
func (r *registration) call(handler func()) {
	defer func() {
		if value := recover(); value != nil {
			r.failed(value)
		}
	}()
	handler()
}

// remove removes the handler. It may be called several times.
func (r *registration) remove() {
	r.feed.mu.Lock()
	defer r.feed.mu.Unlock()
	r.removed = true
	left := slices.DeleteFunc(r.feed.handlers[r.namespace], func(other *registration) bool { return other == r })
	r.feed.handlers[r.namespace] = left
	if len(left) == 0 {
		delete(r.feed.handlers, r.namespace)
	}
}

// HasSynced implements toolscache.ResourceEventHandlerRegistration.
func (r *registration) HasSynced() bool {
	select {
	case <-r.synced:
		return true
	default:
		return false
	}
}

// HasSyncedChecker implements toolscache.ResourceEventHandlerRegistration.
func (r *registration) HasSyncedChecker() toolscache.DoneChecker { return done{r.synced} }

type done struct{ channel <-chan struct{} }

// Name implements toolscache.DoneChecker.
func (d done) Name() string { return "view of a shared cache" }

// Done implements toolscache.DoneChecker.
func (d done) Done() <-chan struct{} { return d.channel }
