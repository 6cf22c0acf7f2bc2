package machinedeployment

import (
	"fmt"
	"maps"
	"slices"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/machinedeployment/revision"
)

// Reasons of events about rollbacks, as in MCM.
const (
	reasonRollback  = "DeploymentRollback"
	reasonNotFound  = "DeploymentRollbackRevisionNotFound"
	reasonUnchanged = "DeploymentRollbackTemplateUnchanged"
)

// planRollback answers a wish to go back to an earlier revision. While the deployment is
// paused, the wish waits.
func planRollback(f facts) []operation {
	wish := f.deployment.Spec.RollbackTo
	if wish == nil || f.deployment.Spec.Paused {
		return nil
	}
	target := revision.Pick(f.all(), wish.Revision)
	switch {
	case target == nil && wish.Revision == 0:
		return []operation{{action: refuse, topic: reasonNotFound, reason: "spec.rollbackTo: there is no earlier revision"}}
	case target == nil:
		return []operation{{action: refuse, topic: reasonNotFound, reason: fmt.Sprintf("spec.rollbackTo.revision: there is no machine set of revision %d", wish.Revision)}}
	case revision.Same(&target.Spec.Template, &f.deployment.Spec.Template):
		return []operation{{action: refuse, topic: reasonUnchanged, reason: fmt.Sprintf("spec.rollbackTo.revision: the template is that of revision %d already", revision.Number(target))}}
	}
	reason := fmt.Sprintf("Rolled back deployment %q to revision %d", f.deployment.Name, revision.Number(target))
	return []operation{{action: rollBack, set: target, topic: reasonRollback, reason: reason}}
}

// rolledBack is the deployment with the template and the annotations of an old set, but for
// those that are no matter of the template.
func rolledBack(deployment *v1alpha1.MachineDeployment, set *v1alpha1.MachineSet) *v1alpha1.MachineDeployment {
	deployment = deployment.DeepCopy()
	set.Spec.Template.DeepCopyInto(&deployment.Spec.Template)
	delete(deployment.Spec.Template.Labels, v1alpha1.DefaultMachineDeploymentUniqueLabelKey)
	own := slices.Concat(ofOperation, notCopied)
	maps.DeleteFunc(deployment.Annotations, func(key, _ string) bool { return !slices.Contains(own, key) })
	if deployment.Annotations == nil {
		deployment.Annotations = map[string]string{}
	}
	for key, value := range set.Annotations {
		if !slices.Contains(own, key) {
			deployment.Annotations[key] = value
		}
	}
	deployment.Spec.RollbackTo = nil
	return deployment
}
