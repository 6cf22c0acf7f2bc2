package planner

import (
	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/deployments"
)

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
	setOf         = deployments.Set
	reports       = deployments.Reports
	preserved     = deployments.Preserved
	unsettled     = deployments.Unsettled
	leaving       = deployments.Leaving
	withUID       = deployments.WithUID
	ofRevision    = deployments.OfRevision
	scaledFor     = deployments.ScaledFor
	member        = deployments.Member
	preservedFor  = deployments.PreservedFor
	markedAt      = deployments.MarkedAt
)
