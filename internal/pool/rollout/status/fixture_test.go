package status

import (
	"strings"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/rollout"
)

type (
	change = func(*v1alpha1.MachineDeployment)
	sets   = []*v1alpha1.MachineSet
)

// nextStatus is the status after a plan that did nothing, or failed.
func nextStatus(f rollout.Facts, failure error) v1alpha1.MachineDeploymentStatus {
	return Next(rollout.New(f), rollout.Outcome{Failure: failure})
}

// says reports whether a condition has a text in its message.
func says(status v1alpha1.MachineDeploymentStatus, kind v1alpha1.MachineDeploymentConditionType, text string) bool {
	at := indexOf(status, kind)
	return at >= 0 && strings.Contains(status.Conditions[at].Message, text)
}

// recorded is a deployment that has recorded the revision of its current set.
func recorded(revision string) change {
	return func(d *v1alpha1.MachineDeployment) {
		d.Annotations = map[string]string{v1alpha1.AnnotationKeyRevision: revision}
	}
}
