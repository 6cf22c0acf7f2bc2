package machinedeployment

import (
	"context"
	"errors"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/machinedeployment/planner"
	"github.com/millwright-dev/millwright/internal/controllers/machinedeployment/status"
	"github.com/millwright-dev/millwright/internal/reconcile/cascade"
)

// settle is the least time between two statuses of a deployment that is being deleted: its sets
// change often then, and nobody waits for the numbers.
const settle = 100 * time.Millisecond

// terminate deletes the sets, and removes the finalizer when none is left. Until then the status
// counts what is left. A deployment that is deleted without its sets waits for the garbage collector,
// which releases them. It returns after what time to look again without an event; 0 is never.
func (p pass) terminate(ctx context.Context, deployment *v1alpha1.MachineDeployment, sets []*v1alpha1.MachineSet) (time.Duration, error) {
	switch {
	case cascade.Orphaning(deployment):
		return 0, nil
	case len(sets) == 0 && controllerutil.ContainsFinalizer(deployment, v1alpha1.FinalizerMCM):
		return 0, p.removeFinalizer(ctx, deployment)
	case p.orphaned.Has(deployment):
		return 0, p.releaseSets(ctx, deployment, sets)
	}
	failure := p.deleteSets(ctx, sets)
	if outdated(failure) {
		return 0, failure
	}
	now := p.Clock.Now()
	if wait := settle - now.Sub(p.memory.counted); failure == nil && wait > 0 && wait <= settle {
		return wait, nil
	}
	p.memory.counted = now
	_, err := p.writeStatus(ctx, deployment, status.Deleting(planner.NewFacts(deployment, sets, now), failure))
	return 0, errors.Join(failure, err)
}

func (p pass) deleteSets(ctx context.Context, sets []*v1alpha1.MachineSet) error {
	var failure error
	for _, set := range sets {
		if set.DeletionTimestamp.IsZero() {
			failure = errors.Join(failure, p.deleteSet(ctx, set))
		}
	}
	return failure
}

// releaseSets releases the sets that the garbage collector did not know when it released the others.
func (p pass) releaseSets(ctx context.Context, deployment *v1alpha1.MachineDeployment, sets []*v1alpha1.MachineSet) error {
	var failure error
	for _, set := range sets {
		op := planner.Operation{Action: planner.Release, Set: set, Reason: "the machine deployment is deleted without its machine sets"}
		failure = errors.Join(failure, p.release(ctx, deployment, op))
	}
	return failure
}
