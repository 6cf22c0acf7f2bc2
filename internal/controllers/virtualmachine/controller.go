// Package virtualmachine decides which hypervisor process may run a VirtualMachine, and
// makes the Pods and claims that it takes.
//
// The decision is a group of fields of the VirtualMachine's status that are changed
// together under the resource version at which they were read. The reconciler reserves
// a Pod's name there before it makes the Pod; the gRPC service tells hypervisors what
// is written there, and swaps it for them.
package virtualmachine

import (
	"context"
	"fmt"
	"net/netip"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/millwright-dev/millwright/api/vm/v1alpha1"
	"github.com/millwright-dev/millwright/internal/vm/identity"
)

// Options configure a Controller. All fields are needed unless they say otherwise.
type Options struct {
	// Client of the infrastructure cluster; reads come from the cache.
	Client client.Client
	// APIReader reads from the API server. Nobody loses a VM, and no Pod is taken for
	// gone, because of what a cache says.
	APIReader client.Reader
	// Events explains to users what happened. A core/v1 recorder.
	Events record.EventRecorder
	// Clock tells the time. Nil: the system's.
	Clock clock.PassiveClock
	// Image is the container image of hypervisors whose VirtualMachine names none.
	Image string
	// Endpoint is the gRPC target under which hypervisors reach the service.
	Endpoint string
	// Authority signs the certificates of hypervisors. See LoadAuthority.
	Authority *identity.Authority
	// Accelerator is what QEMU is to use: auto, kvm or tcg. Empty: the hypervisor's
	// default.
	Accelerator string
	// Networks are the prefixes of the guests' user-mode network, at most one of each
	// IP version. Empty: guests have no network, and VirtualMachines that ask for
	// addresses are refused.
	Networks []netip.Prefix
	// Concurrency is how many VirtualMachines are looked at at the same time. 0: one.
	Concurrency int
}

// Controller reconciles VirtualMachines, and holds what the service shares with it. Make
// one with New.
type Controller struct {
	Options
	// certificate is the Authority's, in PEM form: what hypervisors are given.
	certificate string
	// began is when this process began to watch.
	began    time.Time
	given    *addressBook
	attempts *attempts
	reports  *reports
	told     *told
	streams  *streams
	queue    atomic.Pointer[queue]
}

type queue struct {
	workqueue.TypedRateLimitingInterface[reconcile.Request]
}

// New makes a Controller.
func New(opts Options) *Controller {
	if opts.Clock == nil {
		opts.Clock = clock.RealClock{}
	}
	certificate, _ := opts.Authority.PEM()
	return &Controller{
		Options: opts, certificate: string(certificate), began: opts.Clock.Now(),
		given: newAddressBook(), attempts: newAttempts(), reports: newReports(), told: newTold(), streams: newStreams(),
	}
}

// Names of the indexes of the cache.
const (
	indexOwner  = "millwright.virtualmachine.owner"
	indexSecret = "millwright.virtualmachine.userdata"
)

// CacheByObject is what a cache needs to keep for this package, for a manager that
// caches Pods and claims for nobody else: those of VMs.
func CacheByObject() map[client.Object]cache.ByObject {
	ofVM, err := labels.NewRequirement(v1alpha1.LabelVM, selection.Exists, nil)
	if err != nil {
		panic(err) // the label is a constant
	}
	only := cache.ByObject{Label: labels.NewSelector().Add(*ofVM)}
	return map[client.Object]cache.ByObject{&corev1.Pod{}: only, &corev1.PersistentVolumeClaim{}: only}
}

// SetupWithManager registers the controller and what it watches. Add the Server to the
// same manager.
func (c *Controller) SetupWithManager(mgr ctrl.Manager) error {
	if err := addIndexes(context.Background(), mgr.GetFieldIndexer()); err != nil {
		return err
	}
	err := ctrl.NewControllerManagedBy(mgr).
		Named("virtualmachine").
		For(&v1alpha1.VirtualMachine{}).
		Watches(&v1alpha1.VirtualMachine{}, handler.EnqueueRequestsFromMapFunc(c.refusedAddresses), builder.WithPredicates(freesAddresses())).
		Owns(&corev1.Pod{}).
		Owns(&corev1.PersistentVolumeClaim{}).
		// The content of Secrets is read when it is needed, and kept nowhere.
		WatchesMetadata(&corev1.Secret{}, handler.EnqueueRequestsFromMapFunc(c.usersOf)).
		WatchesRawSource(source.Func(func(_ context.Context, q workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
			c.queue.Store(&queue{q})
			return nil
		})).
		WithOptions(controller.Options{MaxConcurrentReconciles: c.Concurrency}).
		Complete(c)
	if err != nil {
		return fmt.Errorf("setting up the virtual machine controller: %w", err)
	}
	return nil
}

func addIndexes(ctx context.Context, indexer client.FieldIndexer) error {
	err := indexer.IndexField(ctx, &corev1.Pod{}, indexOwner, func(object client.Object) []string {
		if uid := ownerOf(object); uid != "" {
			return []string{string(uid)}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("indexing pods by virtual machine: %w", err)
	}
	err = indexer.IndexField(ctx, &v1alpha1.VirtualMachine{}, indexSecret, func(object client.Object) []string {
		if vm, ok := object.(*v1alpha1.VirtualMachine); ok && vm.Spec.UserData != nil {
			return []string{vm.Spec.UserData.SecretRef.Name}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("indexing virtual machines by secret: %w", err)
	}
	return nil
}

// usersOf are the VMs whose user data is in a Secret.
func (c *Controller) usersOf(ctx context.Context, secret client.Object) []reconcile.Request {
	vms := &v1alpha1.VirtualMachineList{}
	err := c.Client.List(ctx, vms, client.InNamespace(secret.GetNamespace()),
		client.MatchingFields{indexSecret: secret.GetName()}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil // the cache ends with the process
	}
	var requests []reconcile.Request
	for i := range vms.Items {
		requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&vms.Items[i])})
	}
	return requests
}

// wake has a VM looked at.
func (c *Controller) wake(vm types.NamespacedName) {
	if q := c.queue.Load(); q != nil {
		q.Add(reconcile.Request{NamespacedName: vm})
	}
}

// staleCache is how long a pass waits at the most for the cache to show what somebody
// wrote. The event of that write comes first.
const staleCache = time.Second

// Reconcile brings a VM closer to its spec.
func (c *Controller) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	// Whatever brought this pass may concern the open streams.
	c.streams.wake(req.NamespacedName)
	vm := &v1alpha1.VirtualMachine{}
	if err := c.Client.Get(ctx, req.NamespacedName, vm); err != nil {
		if apierrors.IsNotFound(err) {
			c.forget(req.NamespacedName)
		}
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	outcome := c.run(ctx, &pass{vm: vm, now: c.Clock.Now()})
	if outdated(outcome.Err) {
		return ctrl.Result{RequeueAfter: staleCache}, nil
	}
	return ctrl.Result{RequeueAfter: outcome.After}, outcome.Err
}

// forget drops what is remembered of a VM that is gone.
func (c *Controller) forget(vm types.NamespacedName) {
	c.given.forget(vm)
	for _, other := range c.given.waiting() {
		c.wake(other)
	}
	c.attempts.forget(vm)
	c.reports.forget(vm)
	c.told.forget(vm)
}
