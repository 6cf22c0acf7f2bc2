// Package machineclass keeps a MachineClass, and the Secrets that it refers to, from
// being deleted while they are needed.
package machineclass

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/reconcile/expectations"
	"github.com/millwright-dev/millwright/internal/reconcile/fieldindex"
)

// Controller puts a finalizer on classes that are in use, and takes it off again. A class
// is used by the Machines that refer to it, and by what will make such Machines: the
// deployments and sets, of whatever size, whose templates refer to it. The sets that a
// rollout left behind with no replicas make none, and use nothing: Gardener deletes the
// classes of former templates and expects them to go.
type Controller struct {
	client client.Client
	holder holder
}

// New makes a Controller. The client's reads come from the cache.
func New(c client.Client) *Controller { return &Controller{client: c} }

// SetupWithManager registers the controller and what it watches.
func (c *Controller) SetupWithManager(mgr ctrl.Manager) error {
	err := ctrl.NewControllerManagedBy(mgr).
		Named("machineclass").
		For(&v1alpha1.MachineClass{}).
		Watches(&v1alpha1.Machine{}, machineEvents(), builder.WithPredicates(referenceChanges())).
		Watches(&v1alpha1.MachineSet{}, handler.EnqueueRequestsFromMapFunc(classOf), builder.WithPredicates(referenceChanges())).
		Watches(&v1alpha1.MachineDeployment{}, handler.EnqueueRequestsFromMapFunc(classOf), builder.WithPredicates(referenceChanges())).
		Complete(c)
	if err != nil {
		return fmt.Errorf("setting up the machine class controller: %w", err)
	}
	return nil
}

// Reconcile holds a class while it is used.
func (c *Controller) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	class := &v1alpha1.MachineClass{}
	if err := c.client.Get(ctx, req.NamespacedName, class); err != nil {
		return ctrl.Result{}, c.holder.absent(req.NamespacedName, err)
	}
	used, err := c.used(ctx, req.NamespacedName)
	if err != nil {
		return ctrl.Result{}, err
	}
	return c.holder.hold(ctx, c.client, class, v1alpha1.FinalizerMCM, used)
}

// settle is how long events of Machines are collected before their class is reconciled: a class may
// have thousands, and they come and go many at a time.
const settle = 100 * time.Millisecond

// machineEvents enqueues the class of a Machine.
func machineEvents() handler.EventHandler {
	type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]
	wake := func(ctx context.Context, q queue, objects ...client.Object) {
		for _, object := range objects {
			for _, request := range classOf(ctx, object) {
				q.AddAfter(request, settle)
			}
		}
	}
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q queue) { wake(ctx, q, e.Object) },
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) { wake(ctx, q, e.ObjectOld, e.ObjectNew) },
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q queue) { wake(ctx, q, e.Object) },
	}
}

func classOf(_ context.Context, object client.Object) []reconcile.Request {
	ref := referenceOf(object)
	if ref.Kind != v1alpha1.MachineClassKind {
		return nil
	}
	return []reconcile.Request{{NamespacedName: client.ObjectKey{Namespace: object.GetNamespace(), Name: ref.Name}}}
}

// referenceChanges lets through what changes who refers to what.
func referenceChanges() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		return referenceOf(e.ObjectOld) != referenceOf(e.ObjectNew) || leftBehind(e.ObjectOld) != leftBehind(e.ObjectNew)
	}}
}

// holder puts finalizers on objects of one kind and takes them off. The zero value is
// ready to use.
type holder struct {
	// written keeps a second event from writing again what the cache does not show yet: an
	// object and what refers to it are often made at the same time.
	written expectations.Writes
}

// staleCache is how long a pass waits for the cache to show what was written, be it by
// this process or by somebody else who was first.
const staleCache = time.Second

// hold puts the finalizer on the object or takes it off, if that is a change. An object
// that is being deleted can get no finalizer any more.
func (h *holder) hold(ctx context.Context, c client.Client, object client.Object, finalizer string, needed bool) (ctrl.Result, error) {
	if !h.written.Fresh(object) {
		return ctrl.Result{RequeueAfter: staleCache}, nil
	}
	changed := object.DeepCopyObject().(client.Object)
	switch {
	case needed && object.GetDeletionTimestamp().IsZero():
		controllerutil.AddFinalizer(changed, finalizer)
	case !needed:
		controllerutil.RemoveFinalizer(changed, finalizer)
	}
	if len(changed.GetFinalizers()) == len(object.GetFinalizers()) {
		return ctrl.Result{}, nil
	}
	err := h.written.Patch(ctx, c, changed, object)
	switch {
	case err == nil, apierrors.IsNotFound(err):
		return ctrl.Result{}, nil
	case apierrors.IsConflict(err):
		return ctrl.Result{RequeueAfter: staleCache}, nil
	default:
		return ctrl.Result{}, fmt.Errorf("finalizer of %s: %w", client.ObjectKeyFromObject(object), err)
	}
}

// absent forgets an object that could not be read because it is gone.
func (h *holder) absent(key client.ObjectKey, err error) error {
	if apierrors.IsNotFound(err) {
		h.written.Forget(key)
		return nil
	}
	return fmt.Errorf("reading %s: %w", key, err)
}

// SecretController does for Secrets what Controller does for classes.
type SecretController struct {
	client client.Client
	holder holder
}

// NewForSecrets makes a SecretController. The client's reads come from the cache.
func NewForSecrets(c client.Client) *SecretController { return &SecretController{client: c} }

// SetupWithManager registers the controller and what it watches.
func (c *SecretController) SetupWithManager(mgr ctrl.Manager) error {
	err := ctrl.NewControllerManagedBy(mgr).
		Named("secret").
		For(&corev1.Secret{}, builder.WithPredicates(predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
			return len(e.ObjectOld.GetFinalizers()) != len(e.ObjectNew.GetFinalizers())
		}})).
		Watches(&v1alpha1.MachineClass{}, handler.EnqueueRequestsFromMapFunc(secretsOf), builder.WithPredicates(secretChanges())).
		Complete(c)
	if err != nil {
		return fmt.Errorf("setting up the secret controller: %w", err)
	}
	return nil
}

// Reconcile holds a Secret while a class refers to it.
func (c *SecretController) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	secret := &corev1.Secret{}
	if err := c.client.Get(ctx, req.NamespacedName, secret); err != nil {
		return ctrl.Result{}, c.holder.absent(req.NamespacedName, err)
	}
	classes := &v1alpha1.MachineClassList{}
	err := c.client.List(ctx, classes, client.MatchingFields{fieldindex.ClassBySecret: req.String()}, client.Limit(1), client.UnsafeDisableDeepCopy)
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("finding the classes that refer to secret %s: %w", req.Name, err)
	}
	return c.holder.hold(ctx, c.client, secret, v1alpha1.FinalizerSecret, len(classes.Items) > 0)
}

// secretChanges lets through what changes which Secrets a class refers to.
func secretChanges() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		return !slices.Equal(fieldindex.SecretsOf(e.ObjectOld.(*v1alpha1.MachineClass)), fieldindex.SecretsOf(e.ObjectNew.(*v1alpha1.MachineClass)))
	}}
}

func secretsOf(_ context.Context, object client.Object) []reconcile.Request {
	var requests []reconcile.Request
	for _, key := range fieldindex.SecretsOf(object.(*v1alpha1.MachineClass)) {
		if key.Namespace != object.GetNamespace() {
			continue // the cache holds one namespace only; the Machine says what is wrong
		}
		requests = append(requests, reconcile.Request{NamespacedName: key})
	}
	return requests
}
