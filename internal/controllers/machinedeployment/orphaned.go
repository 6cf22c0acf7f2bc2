package machinedeployment

import (
	"context"
	"errors"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// orphaning reports whether a deployment is being deleted without its sets. The garbage collector
// lets go of those that it knows, and takes its finalizer from the deployment after that.
func orphaning(deployment *v1alpha1.MachineDeployment) bool {
	return !deployment.DeletionTimestamp.IsZero() && slices.Contains(deployment.Finalizers, metav1.FinalizerOrphanDependents)
}

// deletions remembers which deployments are deleted without their sets, and wakes none. It sees
// every version; the finalizer may come and go while a pass makes a set, of which the garbage
// collector does not know yet. A process that starts after that does not know.
func (c *Controller) deletions() handler.EventHandler {
	see := func(object client.Object) {
		if orphaning(object.(*v1alpha1.MachineDeployment)) {
			c.orphaned.Store(object.GetUID(), struct{}{})
		}
	}
	return handler.TypedFuncs[client.Object, reconcile.Request]{
		CreateFunc: func(_ context.Context, e event.CreateEvent, _ workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			see(e.Object)
		},
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, _ workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			see(e.ObjectNew)
		},
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, _ workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			c.orphaned.Delete(e.Object.GetUID())
		},
	}
}

// releaseSets lets go of the sets that the garbage collector did not know when it let go of the
// others.
func (c *Controller) releaseSets(ctx context.Context, deployment *v1alpha1.MachineDeployment, sets []*v1alpha1.MachineSet) error {
	var failure error
	for _, set := range sets {
		op := operation{action: release, set: set, reason: "the machine deployment is deleted without its machine sets"}
		failure = errors.Join(failure, c.release(ctx, deployment, op))
	}
	return failure
}
