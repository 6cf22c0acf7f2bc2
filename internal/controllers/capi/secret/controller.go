// Package secret reconciles the finalizers of the Secrets that MillwrightMachines need.
//
// The controller of MillwrightMachines puts them on and takes them off; this one sees to what
// changes besides: a class refers to another Secret, finalizers were removed by hand, a cluster
// was moved here.
package secret

import (
	"context"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/capi/credentials"
	"github.com/millwright-dev/millwright/internal/controllers/capi/marks"
)

// Controller looks at Secrets by their names. Make one with New.
type Controller struct{ secrets *credentials.Secrets }

// New makes a Controller that shares what is known of Secrets with that of
// MillwrightMachines.
func New(secrets *credentials.Secrets) *Controller { return &Controller{secrets: secrets} }

// SetupWithManager registers the controller and what it watches.
func (c *Controller) SetupWithManager(mgr ctrl.Manager) error {
	mapped := handler.EnqueueRequestsFromMapFunc
	err := ctrl.NewControllerManagedBy(mgr).
		Named("millwrightmachine-secret").
		Watches(&infrav1.MillwrightMachine{}, mapped(c.ofMachine), builder.WithPredicates(c.machineChanges())).
		Watches(&v1alpha1.MachineClass{}, mapped(ofClass), builder.WithPredicates(classChanges())).
		Complete(c)
	if err != nil {
		return fmt.Errorf("setting up the controller of MillwrightMachines' Secrets: %w", err)
	}
	return nil
}

func (c *Controller) ofMachine(ctx context.Context, object client.Object) []reconcile.Request {
	keys, err := c.secrets.OfMachine(ctx, object.(*infrav1.MillwrightMachine))
	if err != nil {
		return nil // the cache ends with the process
	}
	return requests(keys)
}

func ofClass(_ context.Context, object client.Object) []reconcile.Request {
	return requests(credentials.OfClass(object.(*v1alpha1.MachineClass)))
}

func requests(keys []types.NamespacedName) []reconcile.Request {
	var made []reconcile.Request
	for _, key := range keys {
		made = append(made, reconcile.Request{NamespacedName: key})
	}
	return made
}

// machineChanges lets through what the controller of MillwrightMachines does not see to
// itself.
func (c *Controller) machineChanges() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc: func(e event.CreateEvent) bool { return marks.Begun(e.Object.(*infrav1.MillwrightMachine)) },
		UpdateFunc: func(e event.UpdateEvent) bool {
			return references(e.ObjectOld) != references(e.ObjectNew)
		},
		DeleteFunc: func(e event.DeleteEvent) bool { return !c.secrets.Released(e.Object.(*infrav1.MillwrightMachine)) },
	}
}

// references names the Secret and the class that a MillwrightMachine refers to.
func references(object client.Object) [2]string {
	var names [2]string
	spec := &object.(*infrav1.MillwrightMachine).Spec
	for i, ref := range []*infrav1.LocalReference{spec.CredentialsSecretRef, spec.MachineClassRef} {
		if ref != nil {
			names[i] = ref.Name
		}
	}
	return names
}

func classChanges() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		return !slices.Equal(credentials.OfClass(e.ObjectOld.(*v1alpha1.MachineClass)), credentials.OfClass(e.ObjectNew.(*v1alpha1.MachineClass)))
	}}
}

// somebodyElse is when a pass comes again that somebody else was faster than.
const somebodyElse = time.Second

// Reconcile holds a Secret while it is needed.
func (c *Controller) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	err := c.secrets.Settle(ctx, req.NamespacedName)
	if apierrors.IsConflict(err) {
		return ctrl.Result{RequeueAfter: somebodyElse}, nil
	}
	return ctrl.Result{}, err
}
