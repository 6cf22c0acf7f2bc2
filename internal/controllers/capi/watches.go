package capi

import (
	"context"

	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/capi/core"
	"github.com/millwright-dev/millwright/internal/controllers/capi/credentials"
	"github.com/millwright-dev/millwright/internal/controllers/capi/marks"
	"github.com/millwright-dev/millwright/internal/lifecycle/ownership"
)

// byCluster is an index of MillwrightMachines in the cache: by the name of their Cluster.
const byCluster = "millwrightmachine.cluster"

var indexes = map[string]client.IndexerFunc{
	ownership.MillwrightMachineByProviderID: ownership.ProviderIDs,
	byCluster:                               func(object client.Object) []string { return nonEmpty(object.GetLabels()[core.LabelCluster]) },
	credentials.BySecret: func(object client.Object) []string {
		if ref := object.(*infrav1.MillwrightMachine).Spec.CredentialsSecretRef; ref != nil {
			return nonEmpty(ref.Name)
		}
		return nil
	},
	credentials.ByClass: func(object client.Object) []string {
		if ref := object.(*infrav1.MillwrightMachine).Spec.MachineClassRef; ref != nil {
			return nonEmpty(ref.Name)
		}
		return nil
	},
}

func nonEmpty(text string) []string {
	if text == "" {
		return nil
	}
	return []string{text}
}

// ofMachine finds the MillwrightMachine of a Machine.
func (c *Controller) ofMachine(_ context.Context, object client.Object) []reconcile.Request {
	ref := object.(*core.Machine).Spec.InfrastructureRef
	if !ref.Is(infrav1.Kind(infrav1.MillwrightMachineKind)) {
		return nil
	}
	return []reconcile.Request{{NamespacedName: client.ObjectKey{Namespace: object.GetNamespace(), Name: ref.Name}}}
}

// ofCluster finds the MillwrightMachines of a Cluster.
func (c *Controller) ofCluster(ctx context.Context, object client.Object) []reconcile.Request {
	return c.find(ctx, object.GetNamespace(), client.MatchingFields{byCluster: object.GetName()}, nil)
}

// waitingForClass finds the MillwrightMachines that a change of their class may help on.
func (c *Controller) waitingForClass(ctx context.Context, object client.Object) []reconcile.Request {
	return c.find(ctx, object.GetNamespace(), client.MatchingFields{credentials.ByClass: object.GetName()}, func(machine *infrav1.MillwrightMachine) bool {
		return !machine.DeletionTimestamp.IsZero() || !marks.Established(machine)
	})
}

func (c *Controller) find(ctx context.Context, namespace string, fields client.MatchingFields, keep func(*infrav1.MillwrightMachine) bool) []reconcile.Request {
	list := &infrav1.MillwrightMachineList{}
	if err := c.Client.List(ctx, list, client.InNamespace(namespace), fields, client.UnsafeDisableDeepCopy); err != nil {
		return nil // the cache ends with the process
	}
	var requests []reconcile.Request
	for i := range list.Items {
		if machine := &list.Items[i]; keep == nil || keep(machine) {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(machine)})
		}
	}
	return requests
}

// machineChanges lets through what a pass looks at.
func machineChanges() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		was, is := e.ObjectOld.(*core.Machine), e.ObjectNew.(*core.Machine)
		return !ptr.Equal(was.Spec.Bootstrap.DataSecretName, is.Spec.Bootstrap.DataSecretName) ||
			was.Spec.FailureDomain != is.Spec.FailureDomain ||
			was.DeletionTimestamp.IsZero() != is.DeletionTimestamp.IsZero() ||
			was.Spec.InfrastructureRef != is.Spec.InfrastructureRef ||
			was.HasNode() != is.HasNode() || was.Healthy() != is.Healthy() ||
			was.ControlPlane() != is.ControlPlane()
	}}
}

// clusterChanges lets through what a pass looks at.
func clusterChanges() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		was, is := e.ObjectOld.(*core.Cluster), e.ObjectNew.(*core.Cluster)
		return was.Spec.Paused != is.Spec.Paused || was.HasInfrastructure() != is.HasInfrastructure()
	}}
}

// classChanges lets through new content, and the finalizer that creations wait for.
func classChanges() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		return e.ObjectOld.GetGeneration() != e.ObjectNew.GetGeneration() || held(e.ObjectOld) != held(e.ObjectNew)
	}}
}

func held(class client.Object) bool {
	return controllerutil.ContainsFinalizer(class, infrav1.ClassFinalizer)
}
