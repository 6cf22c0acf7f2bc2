// Package cloudcontroller runs the controllers of k8s.io/cloud-provider for clusters whose Nodes are VirtualMachines.
package cloudcontroller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/cloud-provider/controllers/node"
	"k8s.io/cloud-provider/controllers/nodelifecycle"
	"k8s.io/cloud-provider/controllers/service"
	"k8s.io/component-base/metrics/legacyregistry"
	controllersmetrics "k8s.io/component-base/metrics/prometheus/controllers"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	vmv1alpha1 "github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/cloud"
	"github.com/millwright-dev/millwright/internal/manager"
	"github.com/millwright-dev/millwright/internal/reconcile/relist"
)

const (
	// Lease is the name of the lease of the leading cloud controller.
	Lease = "millwright-cloud-controller"
	// MaxCluster is the maximum length of Config.Cluster.
	MaxCluster = cloud.MaxCluster
)

// Config configures the cloud controller of a cluster whose Nodes are VirtualMachines.
type Config struct {
	// Workload is the cluster of the Nodes and Services. Required.
	Workload *rest.Config
	// Infrastructure is the cluster of the VirtualMachines. Required.
	Infrastructure *rest.Config
	// Namespace is the namespace of the VirtualMachines. Required.
	Namespace string
	// Cluster is the name of the workload cluster: the value of the label cloud.LabelCluster of its VirtualMachines. It has
	// at most MaxCluster characters. Required.
	Cluster string
	// Election configures leader election. The lease is in the workload cluster, by default in kube-system.
	Election manager.Election
	// MonitorPeriod is the time between two checks whether the VMs of Nodes that are not ready still exist. 0 means five
	// seconds.
	MonitorPeriod time.Duration
	// Pages are the pages that are served over HTTP.
	Pages manager.Pages
	// Log is required.
	Log logr.Logger
}

const (
	// addressPeriod is the time between two updates of the addresses of Nodes.
	addressPeriod = time.Minute
	// workers is the number of Nodes, and of Services, that are reconciled concurrently.
	workers = 5
	// shutdown is how long the controllers may take to terminate.
	shutdown = 30 * time.Second
	// leaseQPS and leaseBurst limit the requests for the lease.
	leaseQPS, leaseBurst = 20, 40
)

// Run runs a cloud controller until ctx is canceled or the controller fails. Without leader election, it must be the only
// one of its cluster.
func Run(ctx context.Context, cfg Config) error {
	cfg.Pages.Gatherer = prometheus.Gatherers{ctrlmetrics.Registry, prometheus.GathererFunc(gather)}
	ready, stop, err := manager.Serve(ctx, cfg.Pages, "waiting for the API server of the infrastructure cluster")
	if err != nil {
		return err
	}
	defer stop()
	err = run(ctx, cfg, ready)
	if ctx.Err() != nil && !errors.Is(err, context.DeadlineExceeded) {
		return nil // components that were starting fail during the shutdown
	}
	return err
}

func run(ctx context.Context, cfg Config, ready func()) error {
	cfg.Infrastructure, cfg.Workload = relist.Config(cfg.Infrastructure), relist.Config(cfg.Workload)
	infrastructure, err := connect(ctx, cfg)
	if err != nil {
		return err
	}
	ready()
	mgr, err := ctrl.NewManager(cfg.Workload, options(cfg))
	if err != nil {
		return fmt.Errorf("setting up the cloud controller: %w", err)
	}
	controllers, err := newControllers(ctx, cfg, infrastructure)
	if err != nil {
		return err
	}
	if err := mgr.Add(controllers); err != nil {
		return fmt.Errorf("adding the cloud controller: %w", err)
	}
	if err := mgr.Start(ctx); err != nil {
		return fmt.Errorf("running the cloud controller: %w", err)
	}
	return nil
}

// options returns the options of the manager. The lease expires when the manager terminates, because the controllers do not
// report when their last writes are complete.
func options(cfg Config) ctrl.Options {
	timeout, election := shutdown, cfg.Election
	lease := rest.CopyConfig(cfg.Workload)
	lease.QPS, lease.Burst = leaseQPS, leaseBurst // so that renewals do not wait for other requests
	return ctrl.Options{
		Scheme: manager.Scheme(), Logger: cfg.Log, GracefulShutdownTimeout: &timeout,
		Metrics: metricsserver.Options{BindAddress: "0"}, HealthProbeBindAddress: "0",
		LeaderElection: election.Enabled, LeaderElectionID: Lease, LeaderElectionNamespace: cmp.Or(election.Namespace, metav1.NamespaceSystem),
		LeaderElectionConfig: lease, LeaseDuration: &election.LeaseDuration, RenewDeadline: &election.RenewDeadline, RetryPeriod: &election.RetryPeriod,
	}
}

// connect returns the infrastructure cluster, with the indexes of its cache, when its API server has responded.
func connect(ctx context.Context, cfg Config) (cluster.Cluster, error) {
	mapper, err := awaitMapper(ctx, cfg)
	if err != nil {
		return nil, err
	}
	infrastructure, err := cluster.New(cfg.Infrastructure, func(o *cluster.Options) {
		o.Scheme, o.Logger = manager.Scheme(), cfg.Log
		o.MapperProvider = func(*rest.Config, *http.Client) (meta.RESTMapper, error) { return mapper, nil }
		o.Cache.DefaultNamespaces = map[string]cache.Config{cfg.Namespace: {}}
		o.Cache.DefaultTransform = cache.TransformStripManagedFields()
		o.Cache.ByObject = map[client.Object]cache.ByObject{
			&corev1.Service{}: {Label: labels.SelectorFromSet(labels.Set{cloud.LabelCluster: cfg.Cluster})},
		}
	})
	if err != nil {
		return nil, fmt.Errorf("connecting to the infrastructure cluster: %w", err)
	}
	return infrastructure, cloud.AddIndexes(ctx, infrastructure.GetFieldIndexer())
}

// awaitMapper waits until the API server of the infrastructure cluster has VirtualMachines, and returns the mapper of its
// kinds.
func awaitMapper(ctx context.Context, cfg Config) (meta.RESTMapper, error) {
	transport, err := rest.HTTPClientFor(cfg.Infrastructure)
	if err != nil {
		return nil, fmt.Errorf("connecting to the infrastructure cluster: %w", err)
	}
	mapper, err := apiutil.NewDynamicRESTMapper(cfg.Infrastructure, transport)
	if err != nil {
		return nil, fmt.Errorf("connecting to the infrastructure cluster: %w", err)
	}
	return mapper, wait.PollUntilContextCancel(ctx, 5*time.Second, true, func(context.Context) (bool, error) {
		_, err := mapper.RESTMapping(vmv1alpha1.Kind(vmv1alpha1.VirtualMachineKind), vmv1alpha1.SchemeGroupVersion.Version)
		if err != nil {
			cfg.Log.Info("waiting for the API server of the infrastructure cluster", "server", cfg.Infrastructure.Host, "err", err.Error())
		}
		return err == nil, nil
	})
}

// controllers are the controllers of k8s.io/cloud-provider, with their caches. They run while this process leads.
type controllers struct {
	infrastructure cluster.Cluster
	workload       informers.SharedInformerFactory
	nodes          *node.CloudNodeController
	lifecycle      *nodelifecycle.CloudNodeLifecycleController
	services       *service.Controller
	synced         []toolscache.InformerSynced
}

func newControllers(ctx context.Context, cfg Config, infrastructure cluster.Cluster) (*controllers, error) {
	live, err := client.New(cfg.Infrastructure, client.Options{Scheme: manager.Scheme(), Mapper: infrastructure.GetRESTMapper(), HTTPClient: infrastructure.GetHTTPClient()})
	if err != nil {
		return nil, fmt.Errorf("connecting to the infrastructure cluster: %w", err)
	}
	clients, err := kubernetes.NewForConfig(cfg.Workload)
	if err != nil {
		return nil, fmt.Errorf("connecting to the workload cluster: %w", err)
	}
	provider := cloud.New(cloud.Options{
		Cache: infrastructure.GetCache(), Infrastructure: live, Workload: clients, Namespace: cfg.Namespace, Cluster: cfg.Cluster,
	})
	c := &controllers{infrastructure: infrastructure}
	c.workload = informers.NewSharedInformerFactoryWithOptions(clients, 0, informers.WithTransform(cache.TransformStripManagedFields()))
	return c, c.add(ctx, provider, clients, cmp.Or(cfg.MonitorPeriod, 5*time.Second))
}

// add creates the controllers.
func (c *controllers) add(ctx context.Context, provider *cloud.Provider, clients kubernetes.Interface, period time.Duration) (err error) {
	nodes, services := c.workload.Core().V1().Nodes(), cloud.NewServices(c.workload.Core().V1().Services())
	c.synced = []toolscache.InformerSynced{nodes.Informer().HasSynced, services.Informer().HasSynced}
	if c.nodes, err = node.NewCloudNodeController(nodes, clients, provider, addressPeriod, workers, workers); err != nil {
		return fmt.Errorf("creating the controller of nodes: %w", err)
	}
	if c.lifecycle, err = nodelifecycle.NewCloudNodeLifecycleController(nodes, clients, provider, period, workers); err != nil {
		return fmt.Errorf("creating the controller that deletes nodes: %w", err)
	}
	if c.services, err = service.New(provider, clients, services, nodes, provider.Cluster, nil); err != nil {
		return fmt.Errorf("creating the controller of services: %w", err)
	}
	loadBalancers, err := c.infrastructure.GetCache().GetInformer(ctx, &corev1.Service{}, cache.BlockUntilSynced(false))
	if err != nil {
		return fmt.Errorf("watching services of the infrastructure cluster: %w", err)
	}
	if _, err := loadBalancers.AddEventHandler(services.Infrastructure()); err != nil {
		return fmt.Errorf("watching services of the infrastructure cluster: %w", err)
	}
	return nil
}

// Start implements manager.Runnable. The caches are filled only now, so that they contain everything that an earlier leader
// wrote.
func (c *controllers) Start(ctx context.Context) error {
	all, ctx := errgroup.WithContext(ctx)
	all.Go(func() error { return c.infrastructure.Start(ctx) })
	c.workload.StartWithContext(ctx)
	if c.infrastructure.GetCache().WaitForCacheSync(ctx) && toolscache.WaitForCacheSync(ctx.Done(), c.synced...) {
		metrics := controllersmetrics.NewControllerManagerMetrics(Lease)
		all.Go(func() error { c.nodes.RunWithContext(ctx, metrics); return nil })
		all.Go(func() error { c.lifecycle.Run(ctx, metrics); return nil })
		all.Go(func() error { c.services.Run(ctx, workers, metrics); return nil })
	}
	err := all.Wait()
	c.workload.Shutdown()
	return err
}

// gather gathers the metrics of the controllers of k8s.io/cloud-provider. The others of their registry are also in that
// of controller-runtime.
func gather() ([]*dto.MetricFamily, error) {
	all, err := legacyregistry.DefaultGatherer.Gather()
	var own []*dto.MetricFamily
	for _, family := range all {
		for _, prefix := range []string{"cloud_node_lifecycle_controller_", "node_controller_", "service_controller_"} {
			if strings.HasPrefix(family.GetName(), prefix) {
				own = append(own, family)
			}
		}
	}
	return own, err
}
