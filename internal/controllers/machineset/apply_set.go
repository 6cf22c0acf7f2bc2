package machineset

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// changeFreeze labels a set that is to be frozen, and the reverse.
func (c *Controller) changeFreeze(ctx context.Context, set *v1alpha1.MachineSet, operations []operation) error {
	for _, op := range operations {
		before := set.DeepCopy()
		was := frozen(set) || condition(set.Status.Conditions, v1alpha1.MachineSetFrozen) >= 0
		reason, message := "FrozeMachineSet", "Froze"
		switch op.action {
		case freeze:
			metav1.SetMetaDataLabel(&set.ObjectMeta, v1alpha1.LabelKeyFreeze, "True")
		case unfreeze:
			reason, message = "UnfrozeMachineSet", "Unfroze"
			delete(set.Labels, v1alpha1.LabelKeyFreeze)
			delete(set.Annotations, v1alpha1.AnnotationKeyUnfreeze)
		default:
			continue
		}
		if err := c.patchSet(ctx, set, before); err != nil {
			return err
		}
		if op.action == unfreeze && !was {
			continue // somebody asked for what is so already
		}
		// MCM's events of this kind are normal ones.
		c.Events.Eventf(set, corev1.EventTypeNormal, reason, "%s machine set %s: %s", message, set.Name, op.reason)
		ctrl.LoggerFrom(ctx).Info(message+" the machine set", "why", op.reason)
	}
	return nil
}

func (c *Controller) addFinalizer(ctx context.Context, set *v1alpha1.MachineSet) error {
	before := set.DeepCopy()
	if !controllerutil.AddFinalizer(set, v1alpha1.FinalizerMCM) {
		return nil
	}
	return c.patchSet(ctx, set, before)
}

func (c *Controller) removeFinalizer(ctx context.Context, set *v1alpha1.MachineSet) error {
	before := set.DeepCopy()
	if !controllerutil.RemoveFinalizer(set, v1alpha1.FinalizerMCM) {
		return nil
	}
	return client.IgnoreNotFound(c.patchSet(ctx, set, before))
}

func (c *Controller) patchSet(ctx context.Context, set, before *v1alpha1.MachineSet) error {
	if err := c.written.Patch(ctx, c.Client, set, before); err != nil {
		return fmt.Errorf("patching machine set %s: %w", set.Name, err)
	}
	return nil
}
