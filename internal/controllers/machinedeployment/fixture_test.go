package machinedeployment

import (
	"slices"
	"testing"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/machinedeployment/status"
	"github.com/millwright-dev/millwright/test/deployments"
	"github.com/millwright-dev/millwright/test/env"
)

func TestMain(m *testing.M) { env.Main(m) }

const (
	pool  = deployments.Pool
	early = deployments.Early
	later = deployments.Later
)

type (
	change = deployments.Change
	sets   = []*v1alpha1.MachineSet
)

var (
	noon          = deployments.Noon
	newDeployment = deployments.New
	class         = deployments.Class
	paused        = deployments.Paused
	recreate      = deployments.Recreate
	rolling       = deployments.Rolling
	inPlace       = deployments.InPlace
	rollbackTo    = deployments.RollbackTo
	setOf         = deployments.Set
	reports       = deployments.Reports
	preserved     = deployments.Preserved
	leaving       = deployments.Leaving
	withUID       = deployments.WithUID
	ofRevision    = deployments.OfRevision
	scaledFor     = deployments.ScaledFor
	member        = deployments.Member
	preservedFor  = deployments.PreservedFor
	markedAt      = deployments.MarkedAt
)

const (
	isTrue = "True"
	// longestMessage is how many bytes the message of a condition may have.
	longestMessage = 1024
)

var progressOf = status.Progress

// conditionAt is where a status has a condition; negative if it has none of that type.
func conditionAt(status v1alpha1.MachineDeploymentStatus, kind v1alpha1.MachineDeploymentConditionType) int {
	return slices.IndexFunc(status.Conditions, func(c v1alpha1.MachineDeploymentCondition) bool { return c.Type == kind })
}

// current is a pass over the deployment.
func (s *server) current() pass {
	return pass{Controller: s.Controller, memory: s.memory.Of(request.NamespacedName)}
}
