package manager

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/millwright-dev/millwright/internal/reconcile/fieldindex"
)

// leaderCache is a cache that starts when this process becomes the leader, so that it contains everything that
// earlier leaders wrote. Before that, it cannot be read.
type leaderCache struct {
	cache.Cache
	// run is the context of Run.
	run context.Context
	// leads is closed when this process becomes the leader.
	leads <-chan struct{}
}

func newLeaderCache(run context.Context, leads <-chan struct{}) cache.NewCacheFunc {
	return func(config *rest.Config, options cache.Options) (cache.Cache, error) {
		made, err := cache.New(config, options)
		if err != nil {
			return nil, err
		}
		return &leaderCache{Cache: made, run: run, leads: leads}, nil
	}
}

// Start fills the cache once this process is the leader, and keeps it up to date until ctx is canceled.
func (c *leaderCache) Start(ctx context.Context) error {
	select {
	case <-c.leads:
		return c.Cache.Start(ctx)
	case <-ctx.Done():
		return nil
	}
}

// WaitForCacheSync returns immediately if this process is not the leader yet, because the manager waits for its
// caches before it takes part in the election. It also returns when Run is canceled. Otherwise the manager
// would wait in a busy loop for a cache that may never be filled, for example because permissions are missing.
func (c *leaderCache) WaitForCacheSync(ctx context.Context) bool {
	select {
	case <-c.leads:
	default:
		return true
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.run, cancel)()
	return c.Cache.WaitForCacheSync(ctx) || c.run.Err() != nil
}

// Get waits for the cache to start if necessary.
func (c *leaderCache) Get(ctx context.Context, key client.ObjectKey, object client.Object, opts ...client.GetOption) error {
	err := c.Cache.Get(ctx, key, object, opts...)
	if c.awaitStart(ctx, err) {
		return c.Cache.Get(ctx, key, object, opts...)
	}
	return err
}

// List waits for the cache to start if necessary.
func (c *leaderCache) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	err := c.Cache.List(ctx, list, opts...)
	if c.awaitStart(ctx, err) {
		return c.Cache.List(ctx, list, opts...)
	}
	return err
}

// awaitStart reports whether a read failed only because the cache had not started, and the cache has started
// now. This happens because controllers start at the same time as the cache, and events from the target may
// arrive first.
func (c *leaderCache) awaitStart(ctx context.Context, err error) bool {
	var early *cache.ErrCacheNotStarted
	return errors.As(err, &early) && c.Cache.WaitForCacheSync(ctx)
}

// newInformer is the type of cache.Options.NewInformer.
type newInformer func(toolscache.ListerWatcher, runtime.Object, time.Duration, toolscache.Indexers) toolscache.SharedIndexInformer

// informers returns the newInformer for a cache of the control cluster. restored is called if the cluster was restored from
// an older backup.
func informers(machines *fieldindex.Informers, unreadable *unreadable, restored func()) newInformer {
	return withLists(withLists(unlessRestored(machines.NewInformer, restored), unreadable.watching), consistent)
}

// withLists returns a newInformer whose informers list through wrap. The object is an example of the kind.
func withLists(made newInformer, wrap func(object runtime.Object, list toolscache.ListWithContextFunc) toolscache.ListWithContextFunc) newInformer {
	return func(from toolscache.ListerWatcher, object runtime.Object, resync time.Duration, indexers toolscache.Indexers) toolscache.SharedIndexInformer {
		if lists, ok := from.(*toolscache.ListWatch); ok {
			lists.ListWithContextFunc = wrap(object, lists.ListWithContextFunc)
		}
		return made(from, object, resync, indexers)
	}
}

// consistent ensures that an informer's first list is as new as the API server's storage. client-go streams the
// list consistently if it can. Otherwise it lists any version in the API server's memory, which may be older
// than the writes of the previous process.
func consistent(_ runtime.Object, list toolscache.ListWithContextFunc) toolscache.ListWithContextFunc {
	return func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		if options.ResourceVersion == "0" {
			options.ResourceVersion = ""
		}
		return list(ctx, options)
	}
}

// mapper caches mappings. Without it, each read from a cache of one namespace checks whether the kind is
// namespaced, for which the original goes through all API groups. That is a seventh of the memory that a
// rollout allocates. The mapping of a kind never changes.
type mapper struct {
	meta.RESTMapper
	// ask sends a request to the API server, and retries it if that may help.
	ask   func(func() error) error
	mu    sync.RWMutex
	known map[schema.GroupVersionKind]*meta.RESTMapping
}

// newMapper returns a MapperProvider for mappers that send requests until ctx is canceled.
func newMapper(ctx context.Context) func(*rest.Config, *http.Client) (meta.RESTMapper, error) {
	return func(config *rest.Config, client *http.Client) (meta.RESTMapper, error) {
		original, err := apiutil.NewDynamicRESTMapper(config, client)
		if err != nil {
			return nil, fmt.Errorf("discovering the API: %w", err)
		}
		return &mapper{
			RESTMapper: original, known: map[schema.GroupVersionKind]*meta.RESTMapping{},
			ask: func(request func() error) error { return retry(ctx, request) },
		}, nil
	}
}

// RESTMapping implements meta.RESTMapper. A kind that was not found is looked up again the next time.
func (m *mapper) RESTMapping(kind schema.GroupKind, versions ...string) (*meta.RESTMapping, error) {
	if len(versions) != 1 {
		return m.RESTMapper.RESTMapping(kind, versions...)
	}
	key := kind.WithVersion(versions[0])
	m.mu.RLock()
	found, ok := m.known[key]
	m.mu.RUnlock()
	if ok {
		return found, nil
	}
	err := m.ask(func() (err error) {
		found, err = m.RESTMapper.RESTMapping(kind, versions...)
		return err
	})
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	m.known[key] = found
	m.mu.Unlock()
	return found, nil
}
