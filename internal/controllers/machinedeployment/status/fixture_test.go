package status

import (
	"strings"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/machinedeployment/planner"
	"github.com/millwright-dev/millwright/test/fixture"
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
	ofRevision    = fixture.OfRevision
	reports       = fixture.Reports
	preserved     = fixture.PreservedFailed
)

// inPlace is the strategy InPlaceUpdate with its bounds.
func inPlace(surge, unavailable string) change {
	return fixture.Strategy(v1alpha1.InPlaceUpdateMachineDeploymentStrategyType, surge, unavailable)
}

// unsettled makes a set one whose controller has not seen its last change.
func unsettled(set *v1alpha1.MachineSet) { set.Generation++ }

// nextStatus is the status after a plan that did nothing, or failed.
func nextStatus(f planner.Facts, failure error) v1alpha1.MachineDeploymentStatus {
	return Next(f, planner.Outcome{Failure: failure})
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
