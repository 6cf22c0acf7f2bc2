package manager

import (
	"context"
	"fmt"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/legacy"
	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/manager/sharedcache"
	"github.com/millwright-dev/millwright/internal/reconcile/fieldindex"
	"github.com/millwright-dev/millwright/internal/reconcile/relist"
)

// Seed is a control cluster that several managers of this process serve, each in another namespace. They share one
// watch for each kind, the discovery of the API, and the connections. Their rate limits are separate.
type Seed struct {
	config        *rest.Config
	scheme        *runtime.Scheme
	mapper        meta.RESTMapper
	live          client.Client
	all           cache.Cache
	shared        *sharedcache.Cache
	machines      *fieldindex.Informers
	unreadable    *unreadable
	events        *events
	olderKinds    []string
	lacksSelector bool
	// apart is the connection for leases and events, so that other requests do not delay them.
	apart *http.Client
}

// NewSeed returns the control cluster of the configuration after it has responded. Only Control, ResyncPeriod and Log of the
// configuration are used. namespaces selects the Namespaces that the cache contains; it contains the objects of all
// namespaces. restored is called, possibly several times, if the cluster was restored from a backup that is older than the cache.
// The process must then exit.
func NewSeed(ctx context.Context, cfg Config, namespaces labels.Selector, restored func()) (*Seed, error) {
	cfg.Namespace, cfg.APIs, cfg.Half, cfg.Control = "", nil, "", relist.Config(cfg.Control)
	scheme, err := prepare(ctx, cfg)
	if err != nil {
		return nil, err
	}
	s := &Seed{config: cfg.Control, scheme: scheme, machines: &fieldindex.Informers{}, lacksSelector: lacksSelector(ctx, cfg)}
	if s.olderKinds, err = servedKinds(ctx, cfg); err != nil {
		return nil, err
	}
	work, err := rest.HTTPClientFor(cfg.Control)
	if err != nil {
		return nil, fmt.Errorf("control cluster: %w", err)
	}
	if s.apart, err = rest.HTTPClientFor(apart(cfg.Control)); err != nil {
		return nil, fmt.Errorf("control cluster: %w", err)
	}
	if s.mapper, err = newMapper(ctx)(cfg.Control, work); err != nil {
		return nil, err
	}
	if s.live, err = client.New(cfg.Control, client.Options{HTTPClient: work, Scheme: scheme, Mapper: s.mapper}); err != nil {
		return nil, fmt.Errorf("control cluster: %w", err)
	}
	if s.events, err = s.newEvents(); err != nil {
		return nil, err
	}
	s.unreadable = &unreadable{log: cfg.Log.WithName("cache"), scheme: scheme, reader: s.live, events: s.events.recorder("manager")}
	return s, s.newCache(cfg, work, namespaces, restored)
}

// newCache creates the cache that the managers share.
func (s *Seed) newCache(cfg Config, work *http.Client, namespaces labels.Selector, restored func()) (err error) {
	options := cache.Options{
		HTTPClient: work, Scheme: s.scheme, Mapper: s.mapper,
		DefaultTransform: cache.TransformStripManagedFields(),
		NewInformer:      informers(s.machines, s.unreadable, restored),
		ByObject:         map[client.Object]cache.ByObject{&corev1.Namespace{}: {Label: namespaces}},
	}
	if cfg.ResyncPeriod > 0 {
		options.SyncPeriod = &cfg.ResyncPeriod
	}
	if s.all, err = cache.New(cfg.Control, options); err != nil {
		return fmt.Errorf("control cluster: %w", err)
	}
	s.shared = sharedcache.New(sharedcache.Options{All: s.all, Live: s.live, Scheme: s.scheme, Kinds: s.kinds()})
	return nil
}

// kinds are the kinds of which a manager must know everything that earlier leaders wrote.
func (s *Seed) kinds() []client.Object {
	all := []client.Object{
		&v1alpha1.MachineDeployment{}, &v1alpha1.MachineSet{}, &v1alpha1.Machine{}, &v1alpha1.MachineClass{}, &corev1.Secret{},
	}
	for _, kind := range s.olderKinds {
		object := &unstructured.Unstructured{}
		object.SetGroupVersionKind(legacy.SchemeGroupVersion.WithKind(kind))
		all = append(all, object)
	}
	return all
}

// Start fills the cache and keeps it up to date until ctx is canceled.
func (s *Seed) Start(ctx context.Context) error {
	defer s.events.shutdown()
	return s.all.Start(ctx)
}

// Cache returns the cache of all namespaces.
func (s *Seed) Cache() cache.Cache { return s.all }

// Live returns a client that reads from the API server.
func (s *Seed) Live() client.Client { return s.live }

// Recorder returns a recorder of events, which stops with Start.
func (s *Seed) Recorder(component string) record.EventRecorder { return s.events.recorder(component) }

// Leases returns a client for leases, with its own rate limit and a connection that only leases and events use.
func (s *Seed) Leases() (*kubernetes.Clientset, error) { return s.separate(s.config) }

// separate returns a client with its own rate limit, on the connection for leases and events.
func (s *Seed) separate(config *rest.Config) (*kubernetes.Clientset, error) {
	config = rest.CopyConfig(config)
	config.QPS, config.Burst = separateQPS, separateBurst
	clients, err := kubernetes.NewForConfigAndClient(config, s.apart)
	if err != nil {
		return nil, fmt.Errorf("control cluster: %w", err)
	}
	return clients, nil
}

func (s *Seed) newEvents() (*events, error) {
	clients, err := s.separate(s.config)
	if err != nil {
		return nil, err
	}
	return newEventsOf(clients, s.scheme), nil
}

// view sets the options of a manager that shares the cache. failed is called with the value of a panic of an event
// handler.
func (s *Seed) view(options *ctrl.Options, namespace string, leads <-chan struct{}, failed func(any)) {
	options.NewCache = func(*rest.Config, cache.Options) (cache.Cache, error) {
		return s.shared.View(namespace, leads, failed), nil
	}
	options.MapperProvider = func(*rest.Config, *http.Client) (meta.RESTMapper, error) { return s.mapper, nil }
	// The manager of a cluster must not hand it over while its tasks run. The process waits only for a limited time when it
	// exits.
	unlimited := -shutdown
	options.GracefulShutdownTimeout = &unlimited
}
