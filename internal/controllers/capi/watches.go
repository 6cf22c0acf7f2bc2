package capi

import (
	"context"
	"fmt"
	"maps"

	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/capi/core"
	"github.com/millwright-dev/millwright/internal/controllers/capi/finalizers"
	"github.com/millwright-dev/millwright/internal/controllers/capi/marks"
	"github.com/millwright-dev/millwright/internal/lifecycle/ownership"
	"github.com/millwright-dev/millwright/internal/reconcile/expectations"
	"github.com/millwright-dev/millwright/internal/reconcile/tasks"
)

// byCluster is the index of MillwrightMachines by the name of their Cluster.
const byCluster = "millwrightmachine.cluster"

// indexes returns the indexes of MillwrightMachines, with their indexer functions.
func indexes() map[string]client.IndexerFunc {
	all := maps.Clone(finalizers.Indexes)
	all[ownership.MillwrightMachineByProviderID] = ownership.ProviderIDs
	all[byCluster] = func(object client.Object) []string {
		if name := object.GetLabels()[core.LabelCluster]; name != "" {
			return []string{name}
		}
		return nil
	}
	return all
}

// SetupWithManager registers the controller, its indexes and its watches.
func (c *Controller) SetupWithManager(mgr ctrl.Manager) error {
	for name, values := range indexes() {
		if err := mgr.GetFieldIndexer().IndexField(context.Background(), &infrav1.MillwrightMachine{}, name, values); err != nil {
			return fmt.Errorf("adding the index %s: %w", name, err)
		}
	}
	mapped := handler.EnqueueRequestsFromMapFunc
	err := ctrl.NewControllerManagedBy(mgr).
		Named("millwrightmachine").
		For(&infrav1.MillwrightMachine{}, builder.WithPredicates(predicate.NewPredicateFuncs(c.watched))).
		Watches(&core.Machine{}, mapped(c.ofMachine), builder.WithPredicates(machineChanges())).
		Watches(&core.Cluster{}, mapped(c.ofCluster), builder.WithPredicates(clusterChanges())).
		Watches(&v1alpha1.MachineClass{}, mapped(c.waitingForClass), builder.WithPredicates(classChanges())).
		WatchesRawSource(c.TaskEvents).
		WatchesRawSource(tasks.Registrations(c.Drivers, c.ofDriver)).
		WithOptions(controller.Options{MaxConcurrentReconciles: c.Concurrency, RateLimiter: expectations.RateLimiter()}).
		Complete(c)
	if err != nil {
		return fmt.Errorf("setting up the controller of MillwrightMachines: %w", err)
	}
	return nil
}

func (c *Controller) ofMachine(_ context.Context, object client.Object) []reconcile.Request {
	return object.(*core.Machine).Spec.InfrastructureRef.Requests(object.GetNamespace(), infrav1.Kind(infrav1.MillwrightMachineKind))
}

func (c *Controller) ofCluster(ctx context.Context, object client.Object) []reconcile.Request {
	return core.Requests(ctx, c.Client, &infrav1.MillwrightMachineList{}, nil,
		client.InNamespace(object.GetNamespace()), client.MatchingFields{byCluster: object.GetName()})
}

// ofDriver returns the MillwrightMachines of a driver that was registered, and lets the engine retry their calls
// immediately.
func (c *Controller) ofDriver(ctx context.Context, name string) []reconcile.Request {
	requests := core.Requests(ctx, c.Client, &infrav1.MillwrightMachineList{}, func(object client.Object) bool {
		return object.(*infrav1.MillwrightMachine).Spec.Driver == name
	})
	for _, request := range requests {
		c.Engine.ResetUnavailable(request.NamespacedName)
	}
	return requests
}

// waitingForClass returns the MillwrightMachines that may be waiting for a change of their class.
func (c *Controller) waitingForClass(ctx context.Context, object client.Object) []reconcile.Request {
	waits := func(object client.Object) bool {
		return !object.GetDeletionTimestamp().IsZero() || !marks.Established(object.(*infrav1.MillwrightMachine))
	}
	return core.Requests(ctx, c.Client, &infrav1.MillwrightMachineList{}, waits,
		client.InNamespace(object.GetNamespace()), client.MatchingFields{finalizers.ByClass: object.GetName()})
}

func machineChanges() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, after := e.ObjectOld.(*core.Machine), e.ObjectNew.(*core.Machine)
		return !ptr.Equal(before.Spec.Bootstrap.DataSecretName, after.Spec.Bootstrap.DataSecretName) ||
			before.Spec.FailureDomain != after.Spec.FailureDomain ||
			before.DeletionTimestamp.IsZero() != after.DeletionTimestamp.IsZero() ||
			before.Spec.InfrastructureRef != after.Spec.InfrastructureRef ||
			before.HasNode() != after.HasNode() || before.Healthy() != after.Healthy() ||
			before.ControlPlane() != after.ControlPlane()
	}}
}

func clusterChanges() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, after := e.ObjectOld.(*core.Cluster), e.ObjectNew.(*core.Cluster)
		return before.Spec.Paused != after.Spec.Paused || before.HasInfrastructure() != after.HasInfrastructure()
	}}
}

// classChanges selects changes of the content, and changes of the finalizer for which creations wait.
func classChanges() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		return e.ObjectOld.GetGeneration() != e.ObjectNew.GetGeneration() || isProtected(e.ObjectOld) != isProtected(e.ObjectNew)
	}}
}

func isProtected(class client.Object) bool {
	return controllerutil.ContainsFinalizer(class, infrav1.ClassFinalizer)
}
