package machineclass

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/reconcile/fieldindex"
)

// used reports whether anything uses a class. Machines come first: where there is one, as
// for most classes at most times, nothing else is looked at.
func (c *Controller) used(ctx context.Context, class types.NamespacedName) (bool, error) {
	machines := &v1alpha1.MachineList{}
	err := c.client.List(ctx, machines, client.InNamespace(class.Namespace),
		client.MatchingFields{fieldindex.MachineByClass: class.Name}, client.Limit(1), client.UnsafeDisableDeepCopy)
	if err != nil {
		return false, fmt.Errorf("finding the machines of class %s: %w", class.Name, err)
	}
	if len(machines.Items) > 0 {
		return true, nil
	}
	deployments := &v1alpha1.MachineDeploymentList{}
	if err := c.client.List(ctx, deployments, client.InNamespace(class.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return false, fmt.Errorf("finding the deployments of class %s: %w", class.Name, err)
	}
	for i := range deployments.Items {
		if uses(&deployments.Items[i], class.Name) {
			return true, nil
		}
	}
	sets := &v1alpha1.MachineSetList{}
	if err := c.client.List(ctx, sets, client.InNamespace(class.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return false, fmt.Errorf("finding the sets of class %s: %w", class.Name, err)
	}
	for i := range sets.Items {
		if uses(&sets.Items[i], class.Name) {
			return true, nil
		}
	}
	return false, nil
}

// uses reports whether a deployment or set will make Machines of the class.
func uses(object client.Object, class string) bool {
	ref := referenceOf(object)
	return ref.Kind == v1alpha1.MachineClassKind && ref.Name == class && !leftBehind(object)
}

// leftBehind reports whether an object is a set of a deployment that has no replicas. If it
// is the newest one, the deployment itself refers to the class.
func leftBehind(object client.Object) bool {
	set, ok := object.(*v1alpha1.MachineSet)
	return ok && set.Spec.Replicas == 0 && metav1.GetControllerOfNoCopy(set) != nil
}

// referenceOf is the reference to a class of a Machine, or of the Machines of a set or
// deployment.
func referenceOf(object client.Object) v1alpha1.ClassSpec {
	switch object := object.(type) {
	case *v1alpha1.Machine:
		return object.Spec.Class
	case *v1alpha1.MachineSet:
		return object.Spec.Template.Spec.Class
	case *v1alpha1.MachineDeployment:
		return object.Spec.Template.Spec.Class
	default:
		return v1alpha1.ClassSpec{}
	}
}
