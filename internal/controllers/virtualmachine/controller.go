// Package virtualmachine gives each VirtualMachine a hypervisor Pod and a disk.
//
// Package authority decides which hypervisor may run a VM. The controller reserves the name of a Pod there before it
// creates the Pod, and package service uses the same decision to respond to hypervisors.
package virtualmachine

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
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
	"github.com/millwright-dev/millwright/internal/reconcile/edge"
	"github.com/millwright-dev/millwright/internal/reconcile/expectations"
	"github.com/millwright-dev/millwright/internal/reconcile/tasks"
	"github.com/millwright-dev/millwright/internal/vm/identity"
	"github.com/millwright-dev/millwright/internal/vm/storage"
)

// Options configure a Controller. All fields are required unless their comments describe a default.
type Options struct {
	// Client accesses the infrastructure cluster and reads from a cache.
	Client client.Client
	// APIReader reads from the API server, so that an outdated cache never causes a hypervisor to lose its VM or a
	// Pod to be treated as gone.
	APIReader client.Reader
	// Events sends core/v1 events about VirtualMachines.
	Events record.EventRecorder
	// Clock returns the current time. If nil, the system clock is used.
	Clock clock.PassiveClock
	// Installation identifies this controller and its standby replicas, as NAMESPACE/NAME of their leader election
	// lease. See v1alpha1.AnnotationController. If empty, the controller marks no VMs and also reconciles the VMs of
	// other controllers.
	Installation string
	// Image is the hypervisor image for VirtualMachines that do not set one.
	Image string
	// Images are the other images that VirtualMachines may set, as exact references. If empty, they may set only
	// Image.
	Images []string
	// Attachments are the NetworkAttachmentDefinitions that VirtualMachines may name, as NAMESPACE/NAME. If empty, they
	// may name none.
	Attachments []string
	// Namespace is the namespace with the Secrets of this controller. VirtualMachines in it get no Pods. If empty,
	// VirtualMachines may be in any namespace.
	Namespace string
	// Endpoint is the gRPC target at which hypervisors reach the service.
	Endpoint string
	// Authority signs the certificates of hypervisors and of the subresource server. See rotation.Load. If Identity is
	// set, Authority is needed only for the subresource server.
	Authority *identity.Authority
	// Begin is called when this process has become the leader, before the first VirtualMachine is reconciled. If it
	// returns an error, the manager stops. If nil, it is not called.
	Begin func(context.Context) error
	// Identity holds the credentials of this controller if another authority issues the certificates of the
	// controller and the hypervisors. If nil, Authority issues them.
	Identity *identity.Credentials
	// Certificates is the volume with a hypervisor's certificate. It is used only with Identity. If nil, the
	// hypervisor image must contain the certificate.
	Certificates *podspec.Certificates
	// Accelerator is the QEMU accelerator: auto, kvm or tcg. If empty, the hypervisor's default is used.
	Accelerator string
	// Networks are the prefixes of the guests' user-mode network, at most one of each IP version. If empty, guests
	// have no network, and VirtualMachines that request addresses are not started.
	Networks []netip.Prefix
	// HostPorts are the TCP ports on a host's loopback interface that guests can reach at the address of the gateway.
	HostPorts []uint16
	// Overlay configures the network between guests on different hosts. The zero value disables it.
	Overlay podspec.Overlay
	// NetworkOf returns the network of the guests in a namespace. Guests in the same network reach each other. It is used
	// only with Overlay. If nil, all guests of a namespace, and no others, are in a network.
	NetworkOf func(namespace string) string
	// OneMachine reports that all hosts run on one machine, as in local mode, so that a lock on a volume is effective
	// between them.
	OneMachine bool
	// Migration configures live migrations. The zero value selects the defaults.
	Migration podspec.Migration
	// Pods configures the hypervisor Pods.
	Pods podspec.Options
	// MigrationsPerHost limits concurrent migrations per host. 0 means no limit.
	MigrationsPerHost int
	// Renewals is the maximum of lease renewals per second that VirtualMachines may need together. One that exceeds it
	// is not started. 0 means authority.DefaultRenewals.
	Renewals float64
	// RenewalClient is only for renewals of leases. See authority.RenewalRequests for its capacity. If nil, APIReader and
	// Client are used.
	RenewalClient client.Client
	// Concurrency is the number of VirtualMachines that are reconciled at the same time. 0 means 1.
	Concurrency int

	// volume connects to a disk server. If nil, the service connects.
	volume func(server disks.Server) (volume storage.Volume, end func(), err error)
}

// diskCalls limits concurrent calls to disk servers.
const diskCalls = 32

// Controller reconciles VirtualMachines. Create one with New.
type Controller struct {
	opts        Options
	edge        *edge.Reconciler[*v1alpha1.VirtualMachine]
	cluster     *cluster
	leader      *leadership
	calls       *tasks.Runner // to disk servers
	memory      expectations.Memory[memory]
	pods        *hypervisorPods
	addresses   *addresses
	volumes     *volumes
	leases      *leases
	election    *election
	fencing     *fencing
	migrations  *migrations
	diskServers *diskServers
	status      *statusWriter
}

// New returns a Controller.
func New(opts Options) *Controller {
	if opts.Clock == nil {
		opts.Clock = clock.RealClock{}
	}
	shared := &cluster{
		client: opts.Client, live: opts.APIReader, events: opts.Events, clock: opts.Clock,
		installation: installation(opts.Installation), settings: opts.settings, signer: opts.signer(),
		registry: &authority.Registry{Client: opts.Client, APIReader: opts.APIReader, Clock: opts.Clock, MigrationsPerHost: opts.MigrationsPerHost, Migration: opts.Migration, Renewals: opts.Renewals, RenewalClient: opts.RenewalClient},
	}
	shared.registry.Foreign = func(vm *v1alpha1.VirtualMachine) bool { return shared.installation.otherController(vm) != "" }
	c := &Controller{
		opts: opts, cluster: shared, leader: &leadership{clock: opts.Clock, startedAt: opts.Clock.Now()}, calls: tasks.New(diskCalls),
		pods:      &hypervisorPods{shared, opts.OneMachine},
		addresses: &addresses{shared, ipam.New(opts.Networks), &addressClaims{cluster: shared}},
		volumes:   &volumes{shared},
		status:    &statusWriter{shared, opts.OneMachine},
	}
	c.leases = &leases{shared, c.leader}
	c.election = &election{shared, c.leader, c.leases, c.volumes}
	c.fencing = &fencing{shared, c.leader}
	c.migrations = &migrations{shared, c.volumes}
	c.diskServers = &diskServers{shared, disks.New(disks.Options{Connect: c.connect, Go: c.calls.Go, Enqueue: shared.queue.add, Clock: opts.Clock})}
	c.edge = &edge.Reconciler[*v1alpha1.VirtualMachine]{
		Reader: opts.Client, Kind: &v1alpha1.VirtualMachine{}, Pass: c.pass, Forget: c.forget, Events: opts.Events,
	}
	shared.hypervisors = service.New(service.Options{
		Registry: shared.registry, Authority: opts.Authority, Identity: opts.Identity, Enqueue: shared.queue.add,
		Refused: c.migrations.announceRefusal, Disks: c.diskServers.caller.Attachment, NetworkOf: opts.networkOf(),
	})
	return c
}

// signer returns the signer of Pods. Without an authority, Pods are not signed.
func (o *Options) signer() podstate.Signer {
	if o.Authority == nil {
		return podstate.Signer{}
	}
	return podstate.Signer{MAC: o.Authority.MAC}
}

// settings returns the settings that the next Pods of all VMs have in common.
func (o *Options) settings() podspec.Settings {
	certificate := ""
	if o.Identity == nil {
		certificate = string(o.Authority.Bundle())
	}
	return podspec.Settings{
		Image: o.Image, Images: o.Images, Attachments: o.Attachments, Namespace: o.Namespace, Controller: o.Installation, Endpoint: o.Endpoint, Authority: certificate, Certificates: o.Certificates,
		Accelerator: o.Accelerator, Networks: o.Networks, HostPorts: o.HostPorts, Overlay: o.Overlay, Migration: o.Migration,
		PodAddresses: !o.OneMachine, Options: o.Pods,
	}
}

// networkOf returns NetworkOf or its default; nil without an overlay.
func (o *Options) networkOf() func(namespace string) string {
	switch {
	case o.Overlay.Port == 0 || len(o.Networks) == 0:
		return nil
	case o.NetworkOf == nil:
		return func(namespace string) string { return namespace }
	}
	return o.NetworkOf
}

// connect connects to a disk server.
func (c *Controller) connect(server disks.Server) (storage.Volume, func(), error) {
	if c.opts.volume != nil {
		return c.opts.volume(server)
	}
	return c.cluster.hypervisors.Volume(server.VM, server.Pod, server.Endpoint)
}

// Server returns the gRPC server for hypervisors, which closes the listener when it stops. Add it to the same manager
// as the controller.
func (c *Controller) Server(listener net.Listener) *service.Server {
	return &service.Server{Service: c.cluster.hypervisors, Listener: listener}
}

// Subresources returns the server for the subresources of VMs. Its users are those of the cluster in config. The name
// is the DNS name under which kube-apiserver reaches it; see subresources.Register. Run it only while the Server
// runs.
func (c *Controller) Subresources(config *rest.Config, name string, log logr.Logger) (*subresources.Server, error) {
	return subresources.New(subresources.Options{
		Config: config, Reader: c.cluster.client, Writer: c.cluster.client, Hypervisors: c.cluster.hypervisors, Log: log,
		Identity: identity.ForServer(c.opts.Authority, name, c.opts.Clock.Now),
	})
}

const (
	// indexOwner is the index of Pods and claims by the UID of their VM.
	indexOwner = "millwright.virtualmachine.owner"
	// indexAddress is the index of VMs by the addresses that they have or request.
	indexAddress = "millwright.virtualmachine.address"
	// indexGuestAddress is the index of hypervisor Pods that are alive by the addresses of their guests.
	indexGuestAddress = "millwright.virtualmachine.guest-address"
)

// CacheByObject restricts a cache to the Pods and claims of VMs. Use it for a manager that needs no other ones.
func CacheByObject() map[client.Object]cache.ByObject {
	ofVM, err := labels.NewRequirement(v1alpha1.LabelVM, selection.Exists, nil)
	if err != nil {
		panic(err) // the label is a constant
	}
	only := cache.ByObject{Label: labels.NewSelector().Add(*ofVM)}
	return map[client.Object]cache.ByObject{&corev1.Pod{}: only, &corev1.PersistentVolumeClaim{}: only}
}

// SetupWithManager registers the controller and its watches. Add the Server to the same manager.
func (c *Controller) SetupWithManager(mgr ctrl.Manager) error {
	if err := addIndexes(context.Background(), mgr.GetFieldIndexer()); err != nil {
		return err
	}
	if err := mgr.Add(c.calls); err != nil {
		return fmt.Errorf("adding the runner of calls to disk servers: %w", err)
	}
	running, err := ctrl.NewControllerManagedBy(mgr).
		Named("virtualmachine").
		For(&v1alpha1.VirtualMachine{}).
		Watches(&v1alpha1.VirtualMachine{}, handler.EnqueueRequestsFromMapFunc(c.addresses.requestsForRefused), builder.WithPredicates(addressesChanged())).
		Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(c.addresses.requestsForRefused), builder.WithPredicates(guestEnded())).
		Owns(&corev1.Pod{}).
		Owns(&corev1.PersistentVolumeClaim{}).
		Watches(&corev1.PersistentVolumeClaim{}, handler.EnqueueRequestsFromMapFunc(vmOfRestoredClaim)).
		WatchesRawSource(source.Func(func(ctx context.Context, q workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
			if c.opts.Begin != nil {
				if err := c.opts.Begin(ctx); err != nil {
					return err
				}
			}
			c.cluster.queue.current.Store(&q)
			c.leader.begin()
			return nil
		})).
		WithOptions(controller.Options{MaxConcurrentReconciles: c.opts.Concurrency, RateLimiter: expectations.RateLimiter()}).
		Build(c)
	if err != nil {
		return fmt.Errorf("setting up the virtual machine controller: %w", err)
	}
	c.addresses.claims.watch = func(claims schema.GroupVersionKind) error {
		of := &metav1.PartialObjectMetadata{}
		of.SetGroupVersionKind(claims)
		return running.Watch(source.Kind(mgr.GetCache(), of,
			handler.TypedEnqueueRequestForOwner[*metav1.PartialObjectMetadata](mgr.GetScheme(), mgr.GetRESTMapper(), &v1alpha1.VirtualMachine{}, handler.OnlyControllerOwner())))
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
	err = indexer.IndexField(ctx, &corev1.Pod{}, indexGuestAddress, func(object client.Object) []string {
		if pod := object.(*corev1.Pod); podstate.Owner(pod) != "" && podstate.Alive(pod) {
			return podspec.Addresses(pod)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("adding the index of guests' addresses: %w", err)
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

// addressesChanged selects updates by which a VM may release an address. Deletions are handled by forget.
func addressesChanged() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc: func(event.CreateEvent) bool { return false },
		DeleteFunc: func(event.DeleteEvent) bool { return false },
		UpdateFunc: func(e event.UpdateEvent) bool {
			return ipam.Changed(e.ObjectOld.(*v1alpha1.VirtualMachine), e.ObjectNew.(*v1alpha1.VirtualMachine))
		},
	}
}

// guestEnded selects the events of Pods after which the addresses of their guests may be free.
func guestEnded() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc: func(event.CreateEvent) bool { return false },
		UpdateFunc: func(e event.UpdateEvent) bool {
			return podstate.Alive(e.ObjectOld.(*corev1.Pod)) && podstate.Finished(e.ObjectNew.(*corev1.Pod))
		},
	}
}

// Reconcile implements reconcile.Reconciler.
func (c *Controller) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	// The change that caused this pass may also affect open run leases.
	c.cluster.hypervisors.Recheck(req.NamespacedName)
	c.cluster.hypervisors.BeginPass(req.NamespacedName)
	return c.edge.Reconcile(ctx, req)
}

// pass reconciles a VM once. It returns the delay after which to reconcile it again, or 0.
func (c *Controller) pass(ctx context.Context, vm *v1alpha1.VirtualMachine) (time.Duration, error) {
	remembered := c.memory.Of(client.ObjectKeyFromObject(vm))
	if other := c.cluster.installation.otherController(vm); other != "" {
		c.leaveAlone(vm, other, remembered)
		return 0, nil
	}
	c.addresses.allocator.Observe(vm)
	return edge.Result(ctx, c.run(ctx, &scope{vm: vm, now: c.cluster.clock.Now(), memory: remembered}))
}

// forget drops the state of a deleted VM.
func (c *Controller) forget(vm types.NamespacedName) {
	c.addresses.forget(vm)
	c.cluster.hypervisors.Forget(vm)
	c.diskServers.caller.Forget(vm)
	c.memory.Forget(vm)
}
