// Package target connects to the cluster that nodes join, which may be unresponsive.
package target

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
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
	// indexed are the existing indexes, because an index cannot be added twice.
	indexed map[string]bool
}

// Options configure the cache.
type Options struct {
	// Scheme is required.
	Scheme *runtime.Scheme
	// Resync is the resync period of the cache. Zero means the default.
	Resync time.Duration
	// Kinds are the kinds that are cached in addition to Nodes before the cluster is Ready.
	Kinds []client.Object
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

// New creates a Cluster. It sends no requests.
func New(config *rest.Config, options Options) (*Cluster, error) {
	made, err := cluster.New(config, func(opts *cluster.Options) {
		opts.Scheme = options.Scheme
		opts.Cache.DefaultTransform, opts.Cache.NewInformer = options.transform(), options.NewInformer
		if options.Resync > 0 {
			opts.Cache.SyncPeriod = &options.Resync
		}
		// Bootstrap tokens are rarely read, and a cache would require permission to list all Secrets.
		opts.Client.Cache = &client.CacheOptions{DisableFor: []client.Object{&corev1.Secret{}}}
	})
	if err != nil {
		return nil, fmt.Errorf("target cluster: %w", err)
	}
	kinds := append([]client.Object{&corev1.Node{}}, options.Kinds...)
	return &Cluster{cluster: made, kinds: kinds, index: options.Index, clock: clock.RealClock{}, indexed: map[string]bool{}, ready: make(chan struct{})}, nil
}

// Client implements Interface. It does not read Secrets from the cache.
func (c *Cluster) Client() client.Client { return c.cluster.GetClient() }

// Start fills the cache and keeps it up to date until ctx is canceled. It retries while the target does not
// respond.
func (c *Cluster) Start(ctx context.Context) error {
	go c.awaitKinds(ctx)
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

// Watch implements Interface.
func (c *Cluster) Watch(object client.Object, events handler.EventHandler, filters ...predicate.Predicate) source.Source {
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
