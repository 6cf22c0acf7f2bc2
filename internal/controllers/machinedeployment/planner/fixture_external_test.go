package planner_test

import (
	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/deployments"
)

const (
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
	setOf         = deployments.Set
	reports       = deployments.Reports
	preserved     = deployments.Preserved
	withUID       = deployments.WithUID
	preservedFor  = deployments.PreservedFor
	markedAt      = deployments.MarkedAt
)
