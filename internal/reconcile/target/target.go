// Package target connects to the cluster that nodes join, which may be unresponsive.
package target

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	logf "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// NodeByMachine is an index of Nodes by the name of the Machine in their label.
const NodeByMachine = "node.machine"

func nodeByMachine(object client.Object) []string {
	if machine := object.GetLabels()[v1alpha1.LabelKeyMachineName]; machine != "" {
		return []string{machine}
	}
	return nil
}

// NodeByProviderID is an index of Nodes by their provider ID.
const NodeByProviderID = "node.providerID"

func nodeByProviderID(object client.Object) []string {
	if id := object.(*corev1.Node).Spec.ProviderID; id != "" {
		return []string{id}
	}
	return nil
}

// Indexes are the indexes of Nodes that a Cluster adds to its cache.
var Indexes = map[string]client.IndexerFunc{NodeByMachine: nodeByMachine, NodeByProviderID: nodeByProviderID}

// Interface is the part of Cluster that controllers use.
type Interface interface {
	// Client returns a client that reads Nodes from a cache, after the cache has synced, and writes to the API
	// server.
	Client() client.Client
	// Ready reports whether the cache has synced.
	Ready() bool
	// ReadySince returns when the cache first synced. It is zero if it has not.
	ReadySince() time.Time
	// Watch returns an event source. Unlike other sources, it does not prevent the controller from starting
	// while the target does not respond.
	Watch(object client.Object, events handler.EventHandler, filters ...predicate.Predicate) source.Source
}

// Cluster is the target cluster. A nil Cluster means that nodes do not join a cluster.
type Cluster struct {
	cluster cluster.Cluster
	kinds   []client.Object // must sync before the cluster is ready
	index   func(context.Context, client.FieldIndexer) error
	clock   clock.PassiveClock
	synced  atomic.Pointer[time.Time]
	// ready is closed when synced is set.
	ready chan struct{}
	// demand caches kinds on demand. It is nil if all kinds are cached all the time.
	demand *onDemand
	// indexed are the existing indexes, because an index cannot be added twice.
	indexed map[string]bool
}

// Options configure the cache.
type Options struct {
	// Scheme is required.
	Scheme *runtime.Scheme
	// Resync is the resync period of the cache. Zero means the default.
	Resync time.Duration
	// Kinds are the kinds that are cached in addition to Nodes.
	Kinds []client.Object
	// Linger is how long Kinds are cached after the last call of Use. Before Use, and after that time, reading them returns an
	// error. If zero, they are cached all the time, and the cluster is Ready when they are.
	Linger time.Duration
	// Keep is a transform for all objects, in addition to the removal of their managed fields. Optional.
	Keep func(object any) (any, error)
	// NewInformer is as in cache.Options. If nil, the default is used.
	NewInformer func(toolscache.ListerWatcher, runtime.Object, time.Duration, toolscache.Indexers) toolscache.SharedIndexInformer
	// Index adds indexes of the Kinds to the cache. It is called once the API server serves them. Optional.
	Index func(context.Context, client.FieldIndexer) error
}

// transform returns one transform for all kinds, because controller-runtime queries the API server about kinds
// that have their own.
func (o Options) transform() toolscache.TransformFunc {
	strip := cache.TransformStripManagedFields()
	if o.Keep == nil {
		return strip
	}
	return func(object any) (any, error) {
		kept, err := o.Keep(object)
		if err != nil {
			return nil, err
		}
		return strip(kept)
	}
}

// cache returns the options of a cache.
func (o Options) cache() cache.Options {
	made := cache.Options{DefaultTransform: o.transform(), NewInformer: o.NewInformer}
	if o.Resync > 0 {
		made.SyncPeriod = &o.Resync
	}
	return made
}

// New creates a Cluster. It sends no requests.
func New(config *rest.Config, options Options) (*Cluster, error) {
	c := &Cluster{kinds: []client.Object{&corev1.Node{}}, clock: clock.RealClock{}, indexed: map[string]bool{}, ready: make(chan struct{})}
	if options.Linger > 0 {
		var err error
		if c.demand, err = newOnDemand(options, func(failed toolscache.WatchErrorHandlerWithContext) (cache.Cache, error) {
			made := options.cache()
			made.Scheme, made.HTTPClient, made.Mapper = options.Scheme, c.cluster.GetHTTPClient(), c.cluster.GetRESTMapper()
			made.DefaultWatchErrorHandler = failed
			return cache.New(config, made)
		}); err != nil {
			return nil, fmt.Errorf("target cluster: %w", err)
		}
	} else {
		c.kinds, c.index = append(c.kinds, options.Kinds...), options.Index
	}
	var err error
	c.cluster, err = cluster.New(config, func(opts *cluster.Options) {
		opts.Scheme, opts.Cache, opts.NewClient = options.Scheme, options.cache(), c.newClient
		// Bootstrap tokens are rarely read, and a cache would require permission to list all Secrets.
		opts.Client.Cache = &client.CacheOptions{DisableFor: []client.Object{&corev1.Secret{}}}
	})
	if err != nil {
		return nil, fmt.Errorf("target cluster: %w", err)
	}
	return c, nil
}

// newClient implements client.NewClientFunc.
func (c *Cluster) newClient(config *rest.Config, options client.Options) (client.Client, error) {
	if c.demand != nil {
		options.Cache.Reader = demandReader{options.Cache.Reader, options.Scheme, c.demand}
	}
	made, err := client.New(config, options)
	if err != nil {
		return nil, err
	}
	return patching{made}, nil
}

// Client implements Interface. It does not read Secrets from the cache, and does not update Nodes and Pods.
func (c *Cluster) Client() client.Client { return c.cluster.GetClient() }

// Use reports whether the Kinds of the options can be read. They can be read until Linger after the last call. If they cannot
// be read yet, wake is called when they can, unless it is nil; only the last call for a key counts. The error is the last
// problem of filling the cache, if there was one. Use does not block.
func (c *Cluster) Use(key types.NamespacedName, wake func()) (filled bool, problem error) {
	if c.demand == nil {
		return c.Ready(), nil
	}
	return c.demand.use(key, wake)
}

// Start fills the cache and keeps it up to date until ctx is canceled. It retries while the target does not
// respond.
func (c *Cluster) Start(ctx context.Context) error {
	go c.awaitKinds(ctx)
	if c.demand != nil {
		defer c.demand.wait()
		var stop context.CancelFunc
		ctx, stop = context.WithCancel(ctx)
		defer stop()
		c.demand.start(ctx)
	}
	if err := c.cluster.Start(ctx); err != nil {
		return fmt.Errorf("target cluster: %w", err)
	}
	return nil
}

// NeedLeaderElection returns false, so that the caches of standby processes are warm.
func (c *Cluster) NeedLeaderElection() bool { return false }

// awaitKinds waits until all kinds are cached.
func (c *Cluster) awaitKinds(ctx context.Context) {
	log := logf.FromContext(ctx).WithName("target")
	lastError := ""
	err := wait.PollUntilContextCancel(ctx, time.Second, true, func(ctx context.Context) (bool, error) {
		err := c.inform(ctx)
		if err != nil && err.Error() != lastError {
			lastError = err.Error()
			log.Info("the target cluster does not respond; machines are waiting for it", "err", lastError)
		}
		return err == nil, nil
	})
	if err != nil || !c.cluster.GetCache().WaitForCacheSync(ctx) {
		return // the process is terminating
	}
	now := c.clock.Now()
	c.synced.Store(&now)
	close(c.ready)
	log.Info("the target cluster responds, and its nodes are cached")
}

// inform starts the informers, and adds the indexes.
func (c *Cluster) inform(ctx context.Context) error {
	for _, kind := range c.kinds {
		if _, err := c.cluster.GetCache().GetInformer(ctx, kind, cache.BlockUntilSynced(false)); err != nil {
			return fmt.Errorf("following %T: %w", kind, err)
		}
	}
	// Indexes are added last because adding an index queries the API server about its kind, and an index cannot
	// be added twice.
	for name, values := range Indexes {
		if c.indexed[name] {
			continue
		}
		if err := c.cluster.GetFieldIndexer().IndexField(ctx, &corev1.Node{}, name, values); err != nil {
			return fmt.Errorf("adding the index %s: %w", name, err)
		}
		c.indexed[name] = true
	}
	if c.index == nil {
		return nil
	}
	return c.index(ctx, c.cluster.GetFieldIndexer())
}

// Ready implements Interface.
func (c *Cluster) Ready() bool { return c.synced.Load() != nil }

// ReadySince implements Interface.
func (c *Cluster) ReadySince() time.Time {
	if at := c.synced.Load(); at != nil {
		return *at
	}
	return time.Time{}
}

// Watch implements Interface. For Kinds that are not cached all the time, there are events only while they are cached,
// beginning with one for each object.
func (c *Cluster) Watch(object client.Object, events handler.EventHandler, filters ...predicate.Predicate) source.Source {
	if name, err := apiutil.GVKForObject(object, c.cluster.GetScheme()); err == nil && c.demand.has(name) {
		return c.demand.source(object, events, filters)
	}
	return source.Func(func(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		go func() {
			select {
			case <-c.ready:
			case <-ctx.Done():
				return
			}
			kind := source.Kind(c.cluster.GetCache(), object, events, filters...)
			if err := kind.Start(ctx, queue); err != nil {
				logf.FromContext(ctx).Error(err, "watching the target cluster")
			}
		}()
		return nil
	})
}
