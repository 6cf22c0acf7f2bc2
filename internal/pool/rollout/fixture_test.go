package rollout

import "github.com/millwright-dev/millwright/api/machine/v1alpha1"

type (
	change = func(*v1alpha1.MachineDeployment)
	sets   = []*v1alpha1.MachineSet
)
