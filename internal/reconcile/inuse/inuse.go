// Package inuse keeps objects from being deleted while other objects refer to them.
package inuse

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/millwright-dev/millwright/internal/reconcile/expectations"
	"github.com/millwright-dev/millwright/internal/reconcile/shutdown"
)

// Controller adds a finalizer to the objects of one kind that are in use, and removes it from
// those that are not. All fields but Events are required.
type Controller struct {
	// Name of the controller.
	Name string
	// Client reads from the cache.
	Client client.Client
	// Kind is an empty object of the kind.
	Kind client.Object
	// Finalizer that the objects get.
	Finalizer string
	// InUse reports whether any object refers to the one with the key.
	InUse func(ctx context.Context, key client.ObjectKey) (bool, error)
	// Watch adds the watches of the objects that refer to the kind.
	Watch func(*builder.Builder)
	// Events of the kind itself that are looked at. Nil: all.
	Events predicate.Predicate

	// written prevents a second patch while the cache does not show the first: an object and
	// what refers to it are often created at the same time.
	written expectations.Writes
}

// SetupWithManager registers the controller and its watches.
func (c *Controller) SetupWithManager(mgr ctrl.Manager) error {
	var events []builder.ForOption
	if c.Events != nil {
		events = append(events, builder.WithPredicates(c.Events))
	}
	b := ctrl.NewControllerManagedBy(mgr).Named(c.Name).For(c.Kind, events...).
		WithOptions(controller.Options{RateLimiter: expectations.RateLimiter()})
	c.Watch(b)
	if err := b.Complete(shutdown.Quiet(c)); err != nil {
		return fmt.Errorf("setting up the controller %s: %w", c.Name, err)
	}
	return nil
}

// Reconcile adds or removes the finalizer of one object.
func (c *Controller) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	object := c.Kind.DeepCopyObject().(client.Object)
	if err := c.Client.Get(ctx, req.NamespacedName, object); err != nil {
		if apierrors.IsNotFound(err) {
			c.written.Forget(req.NamespacedName)
			return ctrl.Result{}, nil
		}
		return ctrl.Result{}, fmt.Errorf("reading %s: %w", req, err)
	}
	if !c.written.Fresh(object) {
		return ctrl.Result{RequeueAfter: expectations.StaleCache}, nil
	}
	used, err := c.InUse(ctx, req.NamespacedName)
	if err != nil {
		return ctrl.Result{}, err
	}
	changed := object.DeepCopyObject().(client.Object)
	if !Set(changed, c.Finalizer, used) {
		return ctrl.Result{}, nil
	}
	err = c.written.Patch(ctx, c.Client, changed, object)
	switch {
	case apierrors.IsConflict(err):
		return ctrl.Result{RequeueAfter: expectations.StaleCache}, nil
	case client.IgnoreNotFound(err) != nil:
		return ctrl.Result{}, fmt.Errorf("finalizer of %s: %w", req, err)
	}
	return ctrl.Result{}, nil
}

// Set adds the finalizer or removes it, and reports whether the object changed. The API server
// lets no finalizer be added to an object that is being deleted.
func Set(object client.Object, finalizer string, used bool) bool {
	if !used {
		return controllerutil.RemoveFinalizer(object, finalizer)
	}
	return object.GetDeletionTimestamp().IsZero() && controllerutil.AddFinalizer(object, finalizer)
}
