package rollout

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/counts"
	"github.com/millwright-dev/millwright/internal/pool/restore"
	"github.com/millwright-dev/millwright/internal/pool/revision"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// AwaitsRestore returns what the deployment waits for because it, or one of its sets, was restored from a backup. It
// returns an empty string if it does not wait. A deployment that waits only adopts and releases sets.
func (r *Rollout) AwaitsRestore() string {
	if at := slices.IndexFunc(r.sets, r.waits); at >= 0 {
		return fmt.Sprintf("machines of machine set %q to be restored from a backup", r.sets[at].Name)
	}
	if !restore.Waits(r.Deployment) || !restore.IsNewDeployment(r.Deployment) && (r.restored() || restore.Expired(r.Deployment, r.Now)) {
		return ""
	}
	return "machine sets to be restored from a backup"
}

// waits reports whether a set waits for its Machines. An invalid set does not end its wait when the time is over.
func (r *Rollout) waits(set *v1alpha1.MachineSet) bool {
	return restore.Waits(set) && set.DeletionTimestamp.IsZero() && !restore.Expired(set, r.Now)
}

// restored reports whether the sets of a restored deployment exist: the one whose revision the deployment has, and as
// many others as its rollout needs. Otherwise the deployment would create Machines that old sets have.
func (r *Rollout) restored() bool {
	recorded := func(set *v1alpha1.MachineSet) bool { return revision.Number(set) >= revision.Number(r.Deployment) }
	required := int64(r.Desired - r.unavailable)
	if r.Deployment.Spec.Strategy.Type == v1alpha1.RecreateMachineDeploymentStrategyType {
		required = 0
	}
	return slices.ContainsFunc(r.sets, recorded) && counts.Total(r.sets, counts.Desired) >= required
}

// planRestored returns the operation after which a restored deployment no longer waits.
func planRestored(r *Rollout) []Operation {
	if !restore.Waits(r.Deployment) {
		return nil
	}
	op := Operation{Action: EndRestore, Topic: "Restored", Reason: "its machine sets exist"}
	if !r.restored() {
		op.Topic, op.Reason = "RestoreIncomplete", "its machine sets were not restored within "+messages.Duration(restore.Timeout)
	}
	return []Operation{op}
}

// RestoreEndsIn returns the time until the deployment or one of its sets stops waiting without an event. It returns 0 if
// there is no such time.
func (r *Rollout) RestoreEndsIn() time.Duration {
	soonest := max(0, restore.Until(r.Deployment).Sub(r.Now))
	for _, set := range r.sets {
		if in := restore.Until(set).Sub(r.Now); in > 0 {
			soonest = min(in, cmp.Or(soonest, in))
		}
	}
	return soonest
}
