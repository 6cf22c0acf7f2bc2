package service

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/connlimit"
	"github.com/millwright-dev/millwright/internal/reconcile/fieldindex"
	"github.com/millwright-dev/millwright/internal/reconcile/relist"
	autoscalerpb "github.com/millwright-dev/millwright/proto/autoscaler"
)

// Config configures a Runner.
type Config struct {
	// Control is the cluster with the Machines, which are in Namespace. Target is the cluster that they join, or
	// nil if there is none.
	Control, Target *rest.Config
	Namespace       string
	Scheme          *runtime.Scheme
	// Listener accepts the connections of the autoscaler, which use Credentials. Run closes it.
	Listener    net.Listener
	Credentials credentials.TransportCredentials
	Log         logr.Logger
}

// Runner serves the autoscaler.
type Runner struct {
	Config
	ready atomic.Bool
}

// Ready returns why calls are not served yet, or nil if they are.
func (r *Runner) Ready() error {
	if !r.ready.Load() {
		return errors.New("the caches have not synced yet")
	}
	return nil
}

// Run serves until the context is canceled, and then completes the calls in progress.
func (r *Runner) Run(ctx context.Context) error {
	defer r.Listener.Close()
	ended := ctx
	all, ctx := errgroup.WithContext(ctx)
	all.Go(func() error {
		service, err := r.open(ctx, all)
		if err != nil {
			return err
		}
		return r.serve(ctx, service)
	})
	if err := all.Wait(); ended.Err() == nil {
		return err
	}
	return nil // an interruption by the shutdown is not a failure
}

// open returns the service once its caches have synced. The caches run in the group.
func (r *Runner) open(ctx context.Context, all *errgroup.Group) (*Service, error) {
	machines, err := r.cache(r.Control, cache.Options{DefaultNamespaces: map[string]cache.Config{r.Namespace: {}}})
	if err != nil {
		return nil, err
	}
	live, err := client.New(r.Control, client.Options{Scheme: r.Scheme})
	if err != nil {
		return nil, fmt.Errorf("connecting to %s: %w", r.Control.Host, err)
	}
	if err := fieldindex.Add(ctx, machines); err != nil {
		return nil, err
	}
	all.Go(func() error { return machines.Start(ctx) })
	service := &Service{Namespace: r.Namespace, Cache: machines, Live: live}
	if r.Target != nil {
		nodes, err := r.cache(r.Target, cache.Options{ByObject: map[client.Object]cache.ByObject{&corev1.Node{}: {Transform: slim}}})
		if err != nil {
			return nil, err
		}
		all.Go(func() error { return nodes.Start(ctx) })
		service.Nodes = nodes
		if err := read(ctx, nodes, &corev1.Node{}); err != nil {
			return nil, err
		}
	}
	return service, read(ctx, machines, &v1alpha1.MachineDeployment{}, &v1alpha1.MachineSet{}, &v1alpha1.Machine{}, &v1alpha1.MachineClass{})
}

func (r *Runner) cache(of *rest.Config, options cache.Options) (cache.Cache, error) {
	options.Scheme, options.DefaultTransform = r.Scheme, cache.TransformStripManagedFields()
	made, err := cache.New(relist.Config(of), options)
	if err != nil {
		return nil, fmt.Errorf("connecting to %s: %w", of.Host, err)
	}
	return made, nil
}

// slim is a transform that keeps only the parts of a node that are read.
func slim(object any) (any, error) {
	if node, ok := object.(*corev1.Node); ok {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node.Name, ResourceVersion: node.ResourceVersion, UID: node.UID}, Spec: corev1.NodeSpec{ProviderID: node.Spec.ProviderID}}, nil
	}
	return object, nil
}

// read waits until a cache has synced the given kinds.
func read(ctx context.Context, from cache.Cache, kinds ...client.Object) error {
	for _, kind := range kinds {
		if _, err := from.GetInformer(ctx, kind); err != nil {
			return fmt.Errorf("reading %T: %w", kind, err)
		}
	}
	return nil
}

// maxAnonymous limits connections during the TLS handshake, because anyone on the network can open them.
const maxAnonymous = 256

// Limits for the calls of a connection. The longest requests contain labels and annotations of many nodes.
const (
	// maxMessage and maxHeaders limit the size of a request, in bytes.
	maxMessage = 4 << 20
	maxHeaders = 16 << 10
	// maxFields limits the fields of a request, with three for each label and annotation.
	maxFields = 1 << 17
	// maxStreams limits concurrent calls. Further ones wait.
	maxStreams = 16
)

// shutdown is how long calls in progress may take after the context was canceled.
const shutdown = 10 * time.Second

func (r *Runner) serve(ctx context.Context, service *Service) error {
	server := grpc.NewServer(grpc.Creds(connlimit.Credentials(r.Credentials)), grpc.ConnectionTimeout(connlimit.HandshakeTimeout), grpc.UnaryInterceptor(r.log),
		grpc.MaxRecvMsgSize(maxMessage), grpc.MaxHeaderListSize(maxHeaders), grpc.MaxConcurrentStreams(maxStreams), connlimit.Messages(maxFields))
	autoscalerpb.RegisterCloudProviderServer(server, service)
	ended := make(chan struct{})
	defer func() { <-ended }()
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		late := time.AfterFunc(shutdown, server.Stop)
		defer late.Stop()
		server.GracefulStop()
	})
	r.ready.Store(true)
	r.Log.Info("Serving the autoscaler", "address", r.Listener.Addr().String(), "namespace", r.Namespace)
	err := server.Serve(connlimit.Listen(r.Listener, maxAnonymous))
	if stop() { // Serve failed without a shutdown
		close(ended)
	}
	return err
}

// log logs failed calls. With higher verbosity, it logs all calls.
func (r *Runner) log(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	log := r.Log.WithValues("call", info.FullMethod[len(autoscalerpb.CloudProvider_ServiceDesc.ServiceName)+2:])
	response, err := handler(ctrl.LoggerInto(ctx, log), request)
	if err != nil {
		log.Info("A call failed", "why", err.Error())
	} else {
		log.V(1).Info("Served")
	}
	return response, err
}
