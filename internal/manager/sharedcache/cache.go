// Package sharedcache lets several managers share one cache of a cluster. Each manager gets a View of its
// namespace, which behaves like a cache of only that namespace that is filled when the manager becomes the leader.
package sharedcache

import (
	"context"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Options configure a Cache.
type Options struct {
	// All is a cache of all namespaces. Required. The Cache does not start it.
	All cache.Cache
	// Live lists the metadata of objects from the API server. Required.
	Live client.Reader
	// Scheme contains all kinds. Required.
	Scheme *runtime.Scheme
	// Kinds are the kinds that a view must have as new as the API server before it can be read. Other kinds may lag
	// behind what another process wrote before this one became the leader.
	Kinds []client.Object
}

// Cache is shared by its views. Its methods may be called concurrently.
type Cache struct {
	Options

	mu      sync.Mutex
	feeds   map[cache.Informer]*feed
	indexed map[string]bool
}

// New returns a Cache.
func New(options Options) *Cache {
	return &Cache{Options: options, feeds: map[cache.Informer]*feed{}, indexed: map[string]bool{}}
}

// feed returns the feed of an informer's events.
func (c *Cache) feed(of cache.Informer) (*feed, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if existing := c.feeds[of]; existing != nil {
		return existing, nil
	}
	made := newFeed()
	if _, err := of.AddEventHandler(made); err != nil {
		return nil, fmt.Errorf("following the events of a shared cache: %w", err)
	}
	c.feeds[of] = made
	return made, nil
}

// index adds an index unless a view has already added it. Indexes of the same name are the same for all views.
func (c *Cache) index(ctx context.Context, object client.Object, field string, values client.IndexerFunc) error {
	key := fmt.Sprintf("%T %s %s", object, object.GetObjectKind().GroupVersionKind(), field)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.indexed[key] {
		return nil
	}
	if err := c.All.IndexField(ctx, object, field, values); err != nil {
		return err
	}
	c.indexed[key] = true
	return nil
}
