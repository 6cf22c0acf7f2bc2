package status

import (
	"fmt"
	"time"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/machinedeployment/planner"
	"github.com/millwright-dev/millwright/internal/controllers/machinedeployment/revision"
)

// Deleting returns the status of a deployment that is being deleted. No Machine is wanted: those that
// exist and are not available count as unavailable. What was reported of the last rollout, and of sets
// that stay, is left as it is.
func Deleting(f planner.Facts, failure error) v1alpha1.MachineDeploymentStatus {
	was, next := f.Deployment.Status, Next(f, planner.Outcome{Failure: failure})
	next.UnavailableReplicas = max(0, next.Replicas-next.AvailableReplicas)
	for _, set := range f.Old { // no set is current, since all are being deleted
		if revision.Same(&set.Spec.Template, &f.Deployment.Spec.Template) {
			next.UpdatedReplicas = planner.Clamp(int64(next.UpdatedReplicas) + int64(max(0, set.Status.Replicas)))
		}
	}
	for _, kind := range []v1alpha1.MachineDeploymentConditionType{v1alpha1.MachineDeploymentProgressing, v1alpha1.MachineDeploymentSetReleased} {
		stored, at := indexOf(was, kind), indexOf(next, kind)
		switch {
		case stored < 0:
			remove(&next, kind)
		case at < 0:
			next.Conditions = append(next.Conditions, was.Conditions[stored])
		default:
			next.Conditions[at] = was.Conditions[stored]
		}
	}
	if failure != nil {
		set(&next, condition(v1alpha1.MachineDeploymentReplicaFailure, v1alpha1.ConditionTrue, v1alpha1.DeploymentReasonSetUpdateError, failure.Error()), f.Now)
	}
	return next
}

// Refused returns the status of a deployment that is not worked on. Its counters stay.
func Refused(deployment *v1alpha1.MachineDeployment, reason, message string, now time.Time) v1alpha1.MachineDeploymentStatus {
	next := *deployment.Status.DeepCopy()
	set(&next, condition(v1alpha1.MachineDeploymentProgressing, v1alpha1.ConditionFalse, reason, message), now)
	return next
}

// RollbackRefused returns the status after a rollback to a revision that does not exist.
func RollbackRefused(f planner.Facts, why string) v1alpha1.MachineDeploymentStatus {
	next := *f.Deployment.Status.DeepCopy()
	message := fmt.Sprintf("%s; the template stays that of revision %d.", why, planner.TemplateRevision(f))
	set(&next, condition(v1alpha1.MachineDeploymentRollbackRefused, v1alpha1.ConditionTrue, v1alpha1.DeploymentReasonRevisionNotFound, message), f.Now)
	return next
}
