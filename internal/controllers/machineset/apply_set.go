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
	"github.com/millwright-dev/millwright/internal/controllers/machineset/planner"
)

// changeFreeze sets or removes the label that freezes a set.
func (c *Controller) changeFreeze(ctx context.Context, f planner.Facts, operations []planner.Operation, done *outcome) error {
	set := done.set
	for _, op := range operations {
		before, why := set.DeepCopy(), op.Reason
		reason, message := "FrozeMachineSet", "Froze"
		switch op.Action {
		case planner.Freeze:
			var err error
			if why, err = c.confirmOvershoot(ctx, f, op); err != nil || why == "" {
				return err
			}
			metav1.SetMetaDataLabel(&set.ObjectMeta, v1alpha1.LabelKeyFreeze, "True")
		case planner.Unfreeze:
			reason, message = "UnfrozeMachineSet", "Unfroze"
			delete(set.Labels, v1alpha1.LabelKeyFreeze)
			delete(set.Annotations, v1alpha1.AnnotationKeyUnfreeze)
		default:
			continue
		}
		if err := c.patchSet(ctx, set, before); err != nil {
			return err
		}
		if op.Action == planner.Freeze {
			done.froze = why
		} else if !planner.Frozen(f.Set) && condition(f.Set.Status.Conditions, v1alpha1.MachineSetFrozen) < 0 {
			continue // somebody asked for what is so already
		}
		// MCM's events of this kind are normal ones.
		c.Events.Eventf(set, corev1.EventTypeNormal, reason, "%s machine set %s: %s", message, set.Name, why)
		ctrl.LoggerFrom(ctx).Info(message+" the machine set", "why", why)
	}
	return nil
}

// confirmOvershoot returns why a set has to be frozen, or nothing if it has not. The cache may show
// an older deployment than set: one that was scaled up would then have too many Machines for what
// was wanted before. So the API server is asked for the deployment.
func (c *Controller) confirmOvershoot(ctx context.Context, f planner.Facts, op planner.Operation) (string, error) {
	if f.Parent == nil {
		return op.Reason, nil
	}
	parent, err := c.parent(ctx, c.Live, f.Set)
	if err != nil {
		return "", err
	}
	limit, exceeded := f.Overshoot.Exceeded(f.Set, parent, op.Count)
	if !exceeded {
		return "", nil
	}
	return planner.TooMany(op.Count, limit), nil
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
	written := &c.memory.Of(client.ObjectKeyFromObject(set)).written
	if err := written.Patch(ctx, c.Client, set, before); err != nil {
		return fmt.Errorf("patching machine set %s: %w", set.Name, err)
	}
	return nil
}
