package planner_test

import (
	"time"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/fixture"
)

const (
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
	markedAt      = fixture.MarkedAt
)

func preservedFor(d time.Duration) func(*v1alpha1.Machine) {
	return fixture.PreservedUntil(noon.Add(d))
}
