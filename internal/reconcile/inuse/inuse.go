// Package inuse prevents objects from being deleted while other objects refer to them.
package inuse

import (
	"context"
	"fmt"
	"time"

	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/millwright-dev/millwright/internal/reconcile/apierror"
	"github.com/millwright-dev/millwright/internal/reconcile/edge"
	"github.com/millwright-dev/millwright/internal/reconcile/expectations"
)

// Options configure a Controller. All fields but Filter and Events are required.
type Options struct {
	// Name is the name of the controller.
	Name string
	// Client reads from the cache.
	Client client.Client
	// Kind is an empty object of the kind.
	Kind client.Object
	// Finalizer is the finalizer that the objects get.
	Finalizer string
	// InUse reports whether any object refers to the one with the key.
	InUse func(ctx context.Context, key client.ObjectKey) (bool, error)
	// Watch adds the watches of the objects that refer to the kind.
	Watch func(*builder.Builder)
	// Filter selects the watch events of the kind itself that are handled. If nil, all are.
	Filter predicate.Predicate
	// Events records an event for an object if a write to it is denied. If nil, no events are recorded.
	Events record.EventRecorder
}

// Controller adds a finalizer to the objects of one kind that are in use, and removes it from the others.
// Create one with New.
type Controller struct {
	Options
	// written prevents a second patch while the cache does not show the first one. This happens because an
	// object and the objects that refer to it are often created at the same time.
	written expectations.Writes
	edge    edge.Reconciler[client.Object]
}

// New creates a Controller.
func New(opts Options) *Controller {
	c := &Controller{Options: opts}
	c.edge = edge.Reconciler[client.Object]{Reader: opts.Client, Kind: opts.Kind, Written: &c.written, Pass: c.pass, Events: opts.Events}
	return c
}

// SetupWithManager registers the controller and its watches.
func (c *Controller) SetupWithManager(mgr ctrl.Manager) error {
	var options []builder.ForOption
	if c.Filter != nil {
		options = append(options, builder.WithPredicates(c.Filter))
	}
	b := ctrl.NewControllerManagedBy(mgr).Named(c.Name).For(c.Kind, options...).
		WithOptions(controller.Options{RateLimiter: expectations.RateLimiter()})
	c.Watch(b)
	if err := b.Complete(c); err != nil {
		return fmt.Errorf("setting up the controller %s: %w", c.Name, err)
	}
	return nil
}

// Reconcile adds or removes the finalizer of one object.
func (c *Controller) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	return c.edge.Reconcile(ctx, req)
}

func (c *Controller) pass(ctx context.Context, object client.Object) (time.Duration, error) {
	used, err := c.InUse(ctx, client.ObjectKeyFromObject(object))
	if err != nil {
		return 0, err
	}
	changed := object.DeepCopyObject().(client.Object)
	if !Set(changed, c.Finalizer, used) {
		return 0, nil
	}
	if err := apierror.IgnoreGone(c.written.Patch(ctx, c.Client, changed, object)); err != nil {
		return 0, fmt.Errorf("finalizer of %s: %w", object.GetName(), err)
	}
	return 0, nil
}

// Set adds or removes the finalizer, and reports whether the object changed. It does not add the finalizer to
// an object that is being deleted, because the API server does not allow that.
func Set(object client.Object, finalizer string, used bool) bool {
	if !used {
		return controllerutil.RemoveFinalizer(object, finalizer)
	}
	return object.GetDeletionTimestamp().IsZero() && controllerutil.AddFinalizer(object, finalizer)
}
