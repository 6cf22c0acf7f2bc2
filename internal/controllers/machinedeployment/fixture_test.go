package machinedeployment

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"slices"
	"testing"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/machinedeployment/status"
	"github.com/millwright-dev/millwright/test/env"
	"github.com/millwright-dev/millwright/test/fixture"
)

func TestMain(m *testing.M) { env.Main(m) }

const (
	pool  = fixture.Pool
	early = "2026-01-02T11:00:00Z"
	later = "2026-01-02T11:30:00Z"
)

type (
	change = func(*v1alpha1.MachineDeployment)
	sets   = []*v1alpha1.MachineSet
)

var (
	noon          = fixture.Noon
	newDeployment = fixture.Deployment
	class         = fixture.OfClass
	paused        = fixture.Paused
	recreate      = fixture.Strategy(v1alpha1.RecreateMachineDeploymentStrategyType, "", "")
	rolling       = fixture.Rolling
	setOf         = fixture.Set
	reports       = fixture.Reports
	preserved     = fixture.PreservedFailed
	withUID       = fixture.WithUID
	ofRevision    = fixture.OfRevision
	scaledFor     = fixture.ScaledFor
	markedAt      = fixture.MarkedAt
)

// inPlace is the strategy InPlaceUpdate with its bounds.
func inPlace(surge, unavailable string) change {
	return fixture.Strategy(v1alpha1.InPlaceUpdateMachineDeploymentStrategyType, surge, unavailable)
}

func rollbackTo(revision int64) change {
	return func(d *v1alpha1.MachineDeployment) { d.Spec.RollbackTo = &v1alpha1.RollbackConfig{Revision: revision} }
}

// leaving makes a set one that is being deleted.
func leaving(set *v1alpha1.MachineSet) { set.DeletionTimestamp = &metav1.Time{Time: noon} }

// member returns a Running Machine of a set, on the node of its own name.
func member(set *v1alpha1.MachineSet, name string) *v1alpha1.Machine {
	return fixture.Running(set, name, fixture.OnNode)
}

func preservedFor(d time.Duration) func(*v1alpha1.Machine) {
	return fixture.PreservedUntil(noon.Add(d))
}

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
