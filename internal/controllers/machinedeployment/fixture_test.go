package machinedeployment

import (
	"slices"
	"testing"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/rollout/status"
	"github.com/millwright-dev/millwright/test/support/env"
)

func TestMain(m *testing.M) { env.Main(m) }

type (
	change = func(*v1alpha1.MachineDeployment)
	sets   = []*v1alpha1.MachineSet
)

func rollbackTo(revision int64) change {
	return func(d *v1alpha1.MachineDeployment) { d.Spec.RollbackTo = &v1alpha1.RollbackConfig{Revision: revision} }
}

const (
	isTrue = "True"
	// maxMessage is the maximum length of a condition's message in bytes.
	maxMessage = 1024
)

var progressOf = status.Progress

// conditionAt returns the index of the condition with the given type, or a negative number.
func conditionAt(status v1alpha1.MachineDeploymentStatus, kind v1alpha1.MachineDeploymentConditionType) int {
	return slices.IndexFunc(status.Conditions, func(c v1alpha1.MachineDeploymentCondition) bool { return c.Type == kind })
}

// current returns the scope of a pass over the deployment.
func (s *server) current() scope {
	return scope{Controller: s.Controller, memory: s.memory.Of(request.NamespacedName)}
}
