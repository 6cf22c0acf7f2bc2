// Package class keeps a MachineClass from being deleted while a MillwrightMachine refers to
// it: without it nobody could find the VM again.
package class

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/capi/credentials"
	"github.com/millwright-dev/millwright/internal/reconcile/expectations"
)

// Controller puts a finalizer on classes that are in use, and takes it off again. Make one
// with New.
type Controller struct {
	client  client.Client
	written expectations.Writes
}

// New makes a Controller. The client's reads come from a cache with the indexes of
// capi.Controller.
func New(c client.Client) *Controller { return &Controller{client: c} }

// SetupWithManager registers the controller and what it watches.
func (c *Controller) SetupWithManager(mgr ctrl.Manager) error {
	err := ctrl.NewControllerManagedBy(mgr).
		Named("millwrightmachine-class").
		For(&v1alpha1.MachineClass{}).
		Watches(&infrav1.MillwrightMachine{}, handler.EnqueueRequestsFromMapFunc(classOf), builder.WithPredicates(referenceChanges())).
		Complete(c)
	if err != nil {
		return fmt.Errorf("setting up the controller of MillwrightMachines' classes: %w", err)
	}
	return nil
}

func classOf(_ context.Context, object client.Object) []reconcile.Request {
	name := reference(object)
	if name == "" {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: object.GetNamespace(), Name: name}}}
}

func reference(object client.Object) string {
	if ref := object.(*infrav1.MillwrightMachine).Spec.MachineClassRef; ref != nil {
		return ref.Name
	}
	return ""
}

func referenceChanges() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool { return reference(e.ObjectOld) != reference(e.ObjectNew) }}
}

// staleCache is how long a pass waits for the cache to show what was written.
const staleCache = time.Second

// Reconcile holds a class while it is used.
func (c *Controller) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	class := &v1alpha1.MachineClass{}
	if err := c.client.Get(ctx, req.NamespacedName, class); err != nil {
		c.written.Forget(req.NamespacedName)
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !c.written.Fresh(class) {
		return ctrl.Result{RequeueAfter: staleCache}, nil
	}
	users := &infrav1.MillwrightMachineList{}
	if err := c.client.List(ctx, users, client.InNamespace(req.Namespace), client.MatchingFields{credentials.ByClass: req.Name}, client.UnsafeDisableDeepCopy); err != nil {
		return ctrl.Result{}, fmt.Errorf("listing the machines of class %s: %w", req.Name, err)
	}
	changed := class.DeepCopy()
	if !hold(changed, len(users.Items) > 0) {
		return ctrl.Result{}, nil
	}
	err := c.written.Patch(ctx, c.client, changed, class)
	switch {
	case apierrors.IsConflict(err):
		return ctrl.Result{RequeueAfter: staleCache}, nil
	case client.IgnoreNotFound(err) != nil:
		return ctrl.Result{}, fmt.Errorf("finalizer of class %s: %w", req.Name, err)
	}
	return ctrl.Result{}, nil
}

// hold puts the finalizer on a class or takes it off, and reports whether that is a change.
// What is being deleted can get no finalizer any more.
func hold(class *v1alpha1.MachineClass, used bool) bool {
	if !used {
		return controllerutil.RemoveFinalizer(class, infrav1.ClassFinalizer)
	}
	return class.DeletionTimestamp.IsZero() && controllerutil.AddFinalizer(class, infrav1.ClassFinalizer)
}
