package machinedeployment

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/index"
)

// sets reads the sets with that controller.
func (c *Controller) sets(ctx context.Context, namespace, controller string) ([]*v1alpha1.MachineSet, error) {
	list := &v1alpha1.MachineSetList{}
	err := c.Client.List(ctx, list, client.InNamespace(namespace), client.MatchingFields{index.ByController: controller})
	if err != nil {
		return nil, fmt.Errorf("listing machine sets: %w", err)
	}
	sets := make([]*v1alpha1.MachineSet, len(list.Items))
	for i := range list.Items {
		sets[i] = &list.Items[i]
	}
	return sets, nil
}

// findStrays adds to the facts the sets that the deployment should adopt.
func (c *Controller) findStrays(ctx context.Context, f *facts) error {
	if c.Live == nil {
		return nil
	}
	orphans, err := c.sets(ctx, f.deployment.Namespace, index.Orphan)
	if err != nil {
		return err
	}
	for _, set := range orphans {
		if set.DeletionTimestamp.IsZero() && selects(f.deployment, set) {
			f.strays = append(f.strays, set)
		}
	}
	return nil
}

// deploymentsOf names the deployments that an event of a set concerns: the one that
// controls it, or those that might.
func (c *Controller) deploymentsOf(ctx context.Context, set client.Object) []reconcile.Request {
	if owner := metav1.GetControllerOfNoCopy(set); owner != nil {
		if owner.Kind != "MachineDeployment" {
			return nil
		}
		return []reconcile.Request{{NamespacedName: client.ObjectKey{Namespace: set.GetNamespace(), Name: owner.Name}}}
	}
	list := &v1alpha1.MachineDeploymentList{}
	if err := c.Client.List(ctx, list, client.InNamespace(set.GetNamespace()), client.UnsafeDisableDeepCopy); err != nil {
		return nil // the cache ends with the process
	}
	var requests []reconcile.Request
	for i := range list.Items {
		if selects(&list.Items[i], set.(*v1alpha1.MachineSet)) {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
		}
	}
	return requests
}
