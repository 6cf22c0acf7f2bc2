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

// nextStatus returns the status after a plan that did nothing or failed.
func nextStatus(f rollout.Facts, failure error) v1alpha1.MachineDeploymentStatus {
	return Next(rollout.New(f), rollout.Outcome{Failure: failure})
}

// contains reports whether the message of a condition contains a text.
func contains(status v1alpha1.MachineDeploymentStatus, kind v1alpha1.MachineDeploymentConditionType, text string) bool {
	at := indexOf(status, kind)
	return at >= 0 && strings.Contains(status.Conditions[at].Message, text)
}

// recorded returns a change that records the revision of a deployment's current set.
func recorded(revision string) change {
	return func(d *v1alpha1.MachineDeployment) {
		d.Annotations = map[string]string{v1alpha1.AnnotationKeyRevision: revision}
	}
}
