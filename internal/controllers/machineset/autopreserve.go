package machineset

import (
	"cmp"
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/preservation"
	"github.com/millwright-dev/millwright/internal/pool/scale"
	"github.com/millwright-dev/millwright/internal/reconcile/apierror"
)

// preservationsCurrent reports whether the cache contains all annotations that this process has set. Otherwise the
// set might preserve too many Machines.
func preservationsCurrent(memory *memory, owned []*v1alpha1.Machine) bool {
	for _, machine := range owned {
		if !memory.preserved.Fresh(machine) {
			return false
		}
	}
	return true
}

// changePreservation annotates Machines that the set preserves automatically, or removes the annotation. The
// machine controller does the rest.
func (c *Controller) changePreservation(ctx context.Context, f scale.Facts, operations []scale.Operation, done *outcome) error {
	memory := c.memory.Of(client.ObjectKeyFromObject(f.Set))
	failures := make([]error, len(operations))
	var preserved, stopped []scale.Operation
	for i, op := range operations {
		changed := op.Machine.DeepCopy()
		if op.Action == scale.Preserve {
			metav1.SetMetaDataAnnotation(&changed.ObjectMeta, v1alpha1.AnnotationKeyPreserve, preservation.AutoPreserved)
		} else {
			delete(changed.Annotations, v1alpha1.AnnotationKeyPreserve)
		}
		err := memory.preserved.Patch(ctx, c.Client, changed, op.Machine)
		switch {
		case apierror.Conflict(err): // the event of the other write triggers the next pass
		case apierror.Gone(err):
		case err != nil:
			failures[i] = fmt.Errorf("%w: preserving machine %s: %w", errUpdate, op.Machine.Name, err)
		default:
			done.changed[op.Machine.UID] = changed.ResourceVersion
			if op.Action == scale.Preserve {
				preserved = append(preserved, op)
			} else {
				stopped = append(stopped, op)
			}
		}
	}
	c.reportEach(ctx, f.Set, "Preserved", "Preserved", preserved)
	c.reportEach(ctx, f.Set, "PreservationStopped", "No longer preserved", stopped)
	return cmp.Or(failures...)
}
