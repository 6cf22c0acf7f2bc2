// Package virtualmachine gives each VirtualMachine a hypervisor Pod and a disk.
//
// Package authority decides which hypervisor may run a VM. The controller reserves the name of
// a Pod there before it creates the Pod, and package service answers hypervisors accordingly.
package virtualmachine

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/authority"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/disks"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/ipam"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podspec"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/podstate"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/service"
	"github.com/millwright-dev/millwright/internal/controllers/virtualmachine/subresources"
	"github.com/millwright-dev/millwright/internal/reconcile/events"
	"github.com/millwright-dev/millwright/internal/reconcile/expectations"
	"github.com/millwright-dev/millwright/internal/reconcile/shutdown"
	"github.com/millwright-dev/millwright/internal/reconcile/tasks"
	"github.com/millwright-dev/millwright/internal/vm/identity"
	"github.com/millwright-dev/millwright/internal/vm/storage"
)

// Options configure a Controller. All fields are needed unless they say otherwise.
type Options struct {
	// Client of the infrastructure cluster; reads come from the cache.
	Client client.Client
	// APIReader reads from the API server: no hypervisor loses a VM, and no Pod counts as
	// gone, because of an old cache.
	APIReader client.Reader
	// Events sends core/v1 events about VirtualMachines.
	Events record.EventRecorder
	// Clock is the source of the time. Nil: the system's.
	Clock clock.PassiveClock
	// Installation names this controller and all that may lead instead of it, as NAMESPACE/NAME of their lease. See
	// v1alpha1.AnnotationController. Empty: it marks no VM, and works for those of others, too.
	Installation string
	// Image is the container image of hypervisors whose VirtualMachine names none.
	Image string
	// Endpoint is the gRPC target under which hypervisors reach the service.
	Endpoint string
	// Authority signs the certificates of hypervisors, and of the server of subresources. See
	// service.LoadAuthority. With Identity it is needed for the latter only.
	Authority *identity.Authority
	// Identity is that of this controller if others issue certificates, also those of hypervisors. Nil: Authority does.
	Identity *identity.Credentials
	// Certificates is the volume with a hypervisor's certificate, with Identity. Nil: its Pod or image has another.
	Certificates *podspec.Certificates
	// Accelerator of QEMU: auto, kvm or tcg. Empty: the hypervisor's default.
	Accelerator string
	// Networks are the prefixes of the guests' user-mode network, at most one of each
	// IP version. Empty: guests have no network, and VirtualMachines that ask for
	// addresses are refused.
	Networks []netip.Prefix
	// HostPorts are the TCP ports of a host's loopback that guests may connect to, at the
	// gateway's address. Empty: none.
	HostPorts []uint16
	// OneMachine says that all hosts are on one machine, as in local mode, so that a lock on a
	// volume holds between them.
	OneMachine bool
	// Migration says how guests migrate. Zero: the defaults.
	Migration podspec.Migration
	// Pods says what the operator of the cluster wants of the Pods of hypervisors. Zero: nothing.
	Pods podspec.Options
	// MigrationsPerHost is how many VMs leave or enter a host at a time when another one wants to
	// leave it. 0: any number.
	MigrationsPerHost int
	// Concurrency is how many VirtualMachines are reconciled at a time. 0: one.
	Concurrency int

	// volume connects to a server of disks. Nil: as the service does.
	volume func(server disks.Server) (volume storage.Volume, end func(), err error)
}

// diskCalls is how many servers of disks are asked at a time.
const diskCalls = 32

// Controller reconciles VirtualMachines. Make one with New.
type Controller struct {
	Options
	settings podspec.Settings
	// startedAt is when this process started to watch. Until it is the leader, it grants no leases.
	startedAt time.Time
	// leadsSince is when this process became the leader; nil before.
	leadsSince  atomic.Pointer[time.Time]
	registry    *authority.Registry
	hypervisors *service.Service
	addresses   *ipam.Allocator
	disks       *disks.Caller
	calls       *tasks.Runner // of disks
	memory      expectations.Memory[memory]
	queue       atomic.Pointer[workqueue.TypedRateLimitingInterface[reconcile.Request]]
}

// memory is what is remembered of a VM between passes. Without it only time is lost.
type memory struct {
	backoff backoff
	events  events.Said
	lease   leaseMemory
	served  servedMemory
	// target is that of the last migration, and when it began. Without it a clock that was set back delays the end of the migration.
	target sighting
}

// New returns a Controller.
func New(opts Options) *Controller {
	if opts.Clock == nil {
		opts.Clock = clock.RealClock{}
	}
	certificate := ""
	if opts.Identity == nil {
		pem, _ := opts.Authority.PEM()
		certificate = string(pem)
	}
	c := &Controller{
		Options: opts, startedAt: opts.Clock.Now(),
		settings: podspec.Settings{
			Image: opts.Image, Endpoint: opts.Endpoint, Authority: certificate, Certificates: opts.Certificates,
			Accelerator: opts.Accelerator, Networks: opts.Networks, HostPorts: opts.HostPorts, Migration: opts.Migration,
			Options: opts.Pods,
		},
		registry:  &authority.Registry{Client: opts.Client, APIReader: opts.APIReader, Clock: opts.Clock, MigrationsPerHost: opts.MigrationsPerHost},
		addresses: ipam.New(opts.Networks),
		calls:     tasks.New(diskCalls),
	}
	if c.volume == nil {
		c.volume = func(server disks.Server) (storage.Volume, func(), error) {
			return c.hypervisors.Volume(server.VM, server.Pod, server.Endpoint)
		}
	}
	c.disks = disks.New(disks.Options{Connect: c.volume, Go: c.calls.Go, Enqueue: c.enqueue, Clock: opts.Clock})
	c.hypervisors = service.New(service.Options{
		Registry: c.registry, Authority: opts.Authority, Identity: opts.Identity, Enqueue: c.enqueue, Refused: c.sayRefused, Disks: c.disks.Attachment,
	})
	return c
}

// Server returns the gRPC server for hypervisors, which takes over the listener. Add it to
// the manager of the controller.
func (c *Controller) Server(listener net.Listener) *service.Server {
	return &service.Server{Service: c.hypervisors, Listener: listener}
}

// Subresources returns the server of the VMs' subresources, for users in the cluster of the configuration. The name
// is that under which kube-apiserver knows it; see subresources.Register. Serve it while the Server serves.
func (c *Controller) Subresources(config *rest.Config, name string, log logr.Logger) (*subresources.Server, error) {
	return subresources.New(subresources.Options{
		Config: config, Reader: c.Client, Writer: c.Client, Hypervisors: c.hypervisors, Log: log,
		Identity: identity.ForServer(c.Authority, name, c.Clock.Now),
	})
}

const (
	// indexOwner is the index of Pods and claims by the UID of their VM.
	indexOwner = "millwright.virtualmachine.owner"
	// indexAddress is the index of VMs by the addresses that they have or request.
	indexAddress = "millwright.virtualmachine.address"
)

// CacheByObject restricts a cache to the Pods and claims of VMs, for a manager that needs no
// others.
func CacheByObject() map[client.Object]cache.ByObject {
	ofVM, err := labels.NewRequirement(v1alpha1.LabelVM, selection.Exists, nil)
	if err != nil {
		panic(err) // the label is a constant
	}
	only := cache.ByObject{Label: labels.NewSelector().Add(*ofVM)}
	return map[client.Object]cache.ByObject{&corev1.Pod{}: only, &corev1.PersistentVolumeClaim{}: only}
}

// SetupWithManager registers the controller and its watches. Add the Server to the same
// manager.
func (c *Controller) SetupWithManager(mgr ctrl.Manager) error {
	if err := addIndexes(context.Background(), mgr.GetFieldIndexer()); err != nil {
		return err
	}
	if err := mgr.Add(c.calls); err != nil {
		return fmt.Errorf("adding the calls of servers of disks: %w", err)
	}
	err := ctrl.NewControllerManagedBy(mgr).
		Named("virtualmachine").
		For(&v1alpha1.VirtualMachine{}).
		Watches(&v1alpha1.VirtualMachine{}, handler.EnqueueRequestsFromMapFunc(c.waitingForAddress), builder.WithPredicates(addressesChanged())).
		Owns(&corev1.Pod{}).
		Owns(&corev1.PersistentVolumeClaim{}).
		WatchesRawSource(source.Func(func(_ context.Context, q workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
			now := c.Clock.Now()
			c.queue.Store(&q)
			c.leadsSince.Store(&now)
			return nil
		})).
		WithOptions(controller.Options{MaxConcurrentReconciles: c.Concurrency, RateLimiter: expectations.RateLimiter()}).
		Complete(shutdown.Quiet(c))
	if err != nil {
		return fmt.Errorf("setting up the virtual machine controller: %w", err)
	}
	return nil
}

func addIndexes(ctx context.Context, indexer client.FieldIndexer) error {
	err := indexer.IndexField(ctx, &v1alpha1.VirtualMachine{}, indexAddress, func(object client.Object) []string {
		return ipam.Keys(object.(*v1alpha1.VirtualMachine))
	})
	if err != nil {
		return fmt.Errorf("adding the index of addresses: %w", err)
	}
	for _, of := range []client.Object{&corev1.Pod{}, &corev1.PersistentVolumeClaim{}} {
		err := indexer.IndexField(ctx, of, indexOwner, func(object client.Object) []string {
			if uid := podstate.Owner(object); uid != "" {
				return []string{string(uid)}
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("adding the index of owners: %w", err)
		}
	}
	return nil
}

// addressesChanged passes updates by which a VM may release an address. For deleted VMs see
// forget.
func addressesChanged() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc: func(event.CreateEvent) bool { return false },
		DeleteFunc: func(event.DeleteEvent) bool { return false },
		UpdateFunc: func(e event.UpdateEvent) bool {
			return ipam.Changed(e.ObjectOld.(*v1alpha1.VirtualMachine), e.ObjectNew.(*v1alpha1.VirtualMachine))
		},
	}
}

// waitingForAddress returns the VMs without an address.
func (c *Controller) waitingForAddress(context.Context, client.Object) []reconcile.Request {
	var requests []reconcile.Request
	for _, vm := range c.addresses.Refused() {
		requests = append(requests, reconcile.Request{NamespacedName: vm})
	}
	return requests
}

// enqueue requests a reconcile of a VM after a time, which may be 0.
func (c *Controller) enqueue(vm types.NamespacedName, after time.Duration) {
	if q := c.queue.Load(); q != nil {
		(*q).AddAfter(reconcile.Request{NamespacedName: vm}, after)
	}
}

// Reconcile brings a VM closer to its spec.
func (c *Controller) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	// The event may concern open run leases.
	c.hypervisors.Recheck(req.NamespacedName)
	c.hypervisors.Take(req.NamespacedName)
	vm := &v1alpha1.VirtualMachine{}
	if err := c.Client.Get(ctx, req.NamespacedName, vm); err != nil {
		if apierrors.IsNotFound(err) {
			c.forget(req.NamespacedName)
		}
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	remembered := c.memory.Of(req.NamespacedName)
	if other := c.otherController(vm); other != "" {
		c.leaveAlone(vm, other, remembered)
		return ctrl.Result{}, nil
	}
	c.addresses.See(vm)
	outcome := c.run(ctx, &pass{vm: vm, now: c.Clock.Now(), memory: remembered})
	if outdated(outcome.Err) {
		return ctrl.Result{RequeueAfter: expectations.StaleCache}, nil
	}
	return ctrl.Result{RequeueAfter: outcome.After}, outcome.Err
}

// forget drops what is remembered of a VM that is gone.
func (c *Controller) forget(vm types.NamespacedName) {
	c.addresses.Forget(vm)
	for _, other := range c.addresses.Refused() {
		c.enqueue(other, 0)
	}
	c.hypervisors.Forget(vm)
	c.disks.Forget(vm)
	c.memory.Forget(vm)
}
