package planner

import (
	"fmt"
	"maps"
	"slices"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/machinedeployment/revision"
)

// planRollback answers spec.rollbackTo. While the deployment is paused, the answer waits.
func planRollback(f Facts) []Operation {
	to := f.Deployment.Spec.RollbackTo
	if to == nil || f.Deployment.Spec.Paused {
		return nil
	}
	answered := f.Deployment.DeepCopy()
	answered.Spec.RollbackTo = nil
	op := Operation{Action: Refuse, Topic: v1alpha1.DeploymentReasonRevisionNotFound, Deployment: answered}
	target := revision.Pick(f.All(), to.Revision)
	switch {
	case target == nil && to.Revision == 0:
		op.Reason = "spec.rollbackTo: there is no earlier revision"
	case target == nil:
		op.Reason = fmt.Sprintf("spec.rollbackTo.revision: there is no machine set of revision %d", to.Revision)
	case revision.Same(&target.Spec.Template, &f.Deployment.Spec.Template):
		op.Topic = v1alpha1.DeploymentReasonTemplateUnchanged
		op.Reason = fmt.Sprintf("spec.rollbackTo.revision: the template is that of revision %d already", revision.Number(target))
	default:
		rollBack(answered, target)
		op.Action, op.Set, op.Topic = RollBack, target, v1alpha1.DeploymentReasonRollback
		op.Reason = fmt.Sprintf("Rolled back deployment %q to revision %d", f.Deployment.Name, revision.Number(target))
	}
	return []Operation{op}
}

// rollBack gives a deployment the template of an old set, and the set's annotations but for those
// that do not belong to a template.
func rollBack(deployment *v1alpha1.MachineDeployment, set *v1alpha1.MachineSet) {
	set.Spec.Template.DeepCopyInto(&deployment.Spec.Template)
	delete(deployment.Spec.Template.Labels, v1alpha1.DefaultMachineDeploymentUniqueLabelKey)
	own := slices.Concat(operational, notCopied)
	maps.DeleteFunc(deployment.Annotations, func(key, _ string) bool { return !slices.Contains(own, key) })
	if deployment.Annotations == nil {
		deployment.Annotations = map[string]string{}
	}
	for key, value := range set.Annotations {
		if !slices.Contains(own, key) {
			deployment.Annotations[key] = value
		}
	}
}
