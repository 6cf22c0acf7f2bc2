// Package finalizers protects the MachineClasses and Secrets of MillwrightMachines from deletion while they are
// needed. Without them, the driver could not find and delete the VMs.
package finalizers

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	infrav1 "github.com/millwright-dev/millwright/api/infrastructure/v1alpha1"
	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/reconcile/inuse"
)

// Indexes of MillwrightMachines in the cache, by the names of the MachineClass and of the Secret that they refer to.
const (
	ByClass  = "millwrightmachine.class"
	BySecret = "millwrightmachine.secret"
)

// Indexes are the indexer functions of ByClass and BySecret.
var Indexes = map[string]client.IndexerFunc{
	ByClass:  func(object client.Object) []string { return name(specOf(object).MachineClassRef) },
	BySecret: func(object client.Object) []string { return name(specOf(object).CredentialsSecretRef) },
}

func specOf(object client.Object) *infrav1.MillwrightMachineSpec {
	return &object.(*infrav1.MillwrightMachine).Spec
}

func name(ref *infrav1.LocalReference) []string {
	if ref == nil || ref.Name == "" {
		return nil
	}
	return []string{ref.Name}
}

// NewForClasses returns the controller of the MachineClasses. The client must read from a cache with Indexes. Events
// are recorded on MachineClasses.
func NewForClasses(c client.Client, events record.EventRecorder) *inuse.Controller {
	return inuse.New(inuse.Options{
		Name: "millwrightmachine-class", Client: c, Events: events, Kind: &v1alpha1.MachineClass{}, Finalizer: infrav1.ClassFinalizer,
		InUse: func(ctx context.Context, key client.ObjectKey) (bool, error) {
			users := &infrav1.MillwrightMachineList{}
			err := c.List(ctx, users, client.InNamespace(key.Namespace), client.MatchingFields{ByClass: key.Name}, client.UnsafeDisableDeepCopy)
			if err != nil {
				return false, fmt.Errorf("listing the MillwrightMachines of class %s: %w", key.Name, err)
			}
			return len(users.Items) > 0, nil
		},
		Watch: func(b *builder.Builder) {
			b.Watches(&infrav1.MillwrightMachine{}, handler.EnqueueRequestsFromMapFunc(classOf), builder.WithPredicates(
				predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool { return !sameReference(e, ByClass) }}))
		},
	})
}

func classOf(_ context.Context, object client.Object) []reconcile.Request {
	var keys []types.NamespacedName
	for _, class := range Indexes[ByClass](object) {
		keys = append(keys, types.NamespacedName{Namespace: object.GetNamespace(), Name: class})
	}
	return requests(keys)
}

// sameReference reports whether an update leaves the reference of an index unchanged.
func sameReference(e event.UpdateEvent, index string) bool {
	return slices.Equal(Indexes[index](e.ObjectOld), Indexes[index](e.ObjectNew))
}
