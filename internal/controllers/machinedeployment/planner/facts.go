// Package planner decides what brings a MachineDeployment closer to its goal.
//
// It is pure: from Facts, Plan makes Operations that each carry their reason. It reads no clock and
// no API.
package planner

import (
	"math"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/machinedeployment/revision"
)

// Facts are all that a plan and a status are made from. They are read-only.
type Facts struct {
	// Deployment that is planned for.
	Deployment *v1alpha1.MachineDeployment
	// Current is the set of the deployment's template; nil if there is none yet.
	Current *v1alpha1.MachineSet
	// Old are the sets of other templates and those being deleted, the oldest first.
	Old []*v1alpha1.MachineSet
	// Orphans are sets without a controller that the selector matches.
	Orphans []*v1alpha1.MachineSet
	// Released are sets with Machines that were created for the deployment, have no controller, and
	// do not match its selector any more.
	Released []*v1alpha1.MachineSet
	// Overlaps are the names of other deployments that select the same Machines.
	Overlaps []string
	// Named are the Machines that an autoscaler named for deletion.
	Named []Named
	// Retained is how many preserved Machines a set keeps beyond its replicas, by its name.
	Retained map[string]int32
	// Nodes of the Machines; nil if they were not read. TargetAway reports whether that is because
	// their cluster does not answer.
	Nodes      *Nodes
	TargetAway bool
	// Now is the time of the pass.
	Now time.Time

	// rolling reports whether Machines are replaced a few at a time, which is the default.
	rolling bool
	// surge and unavailable bound a rolling update, in Machines.
	surge, unavailable int32
	// heldBack are sets that must not be scaled down, since a named Machine is not marked yet.
	heldBack []*v1alpha1.MachineSet
}

// Nodes are the nodes of a deployment's Machines.
type Nodes struct {
	// OfOld are the nodes of old sets, OfCurrent those of the current one.
	OfOld, OfCurrent []Node
	// Protect reports whether a rollout keeps autoscalers from removing nodes.
	Protect bool
	// Stale reports whether nodes are left out, since the cache does not show the last write to them.
	Stale bool
}

// Node is a Machine and its Node.
type Node struct {
	Machine *v1alpha1.Machine
	Node    *corev1.Node
}

// NewFacts sorts the sets that a deployment controls. The other facts are the caller's to fill in.
func NewFacts(deployment *v1alpha1.MachineDeployment, sets []*v1alpha1.MachineSet, now time.Time) Facts {
	strategy := deployment.Spec.Strategy.Type
	f := Facts{Deployment: deployment, Now: now, rolling: strategy == "" || strategy == v1alpha1.RollingUpdateMachineDeploymentStrategyType}
	f.surge, f.unavailable = Bounds(deployment)
	sets = slices.Clone(sets)
	slices.SortFunc(sets, revision.Older)
	f.Current = revision.Current(sets, &deployment.Spec.Template)
	f.Old = slices.DeleteFunc(sets, func(set *v1alpha1.MachineSet) bool { return set == f.Current })
	return f
}

// All returns the sets, the current one last. The slice is the caller's.
func (f Facts) All() []*v1alpha1.MachineSet {
	all := slices.Clone(f.Old)
	if f.Current != nil {
		all = append(all, f.Current)
	}
	return all
}

// Bounds returns how many Machines an update may have beyond the replicas, and how many of the
// replicas may be unavailable. For a rolling update both default to 1, and if both are 0, one may be
// unavailable. An update in place adds no Machine. The strategy Recreate has no bounds.
func Bounds(deployment *v1alpha1.MachineDeployment) (surge, unavailable int32) {
	config := v1alpha1.UpdateConfiguration{}
	switch strategy := deployment.Spec.Strategy; strategy.Type {
	case v1alpha1.RecreateMachineDeploymentStrategyType:
		return 0, 0
	case v1alpha1.InPlaceUpdateMachineDeploymentStrategyType:
		if strategy.InPlaceUpdate != nil {
			config.MaxUnavailable = strategy.InPlaceUpdate.MaxUnavailable
		}
		config.MaxSurge = ptr.To(intstr.FromInt32(0))
	case v1alpha1.RollingUpdateMachineDeploymentStrategyType, "":
		if strategy.RollingUpdate != nil {
			config = strategy.RollingUpdate.UpdateConfiguration
		}
	}
	one, total := intstr.FromInt32(1), int(deployment.Spec.Replicas)
	// Both were validated, so neither can fail.
	up, _ := intstr.GetScaledValueFromIntOrPercent(intstr.ValueOrDefault(config.MaxSurge, one), total, true)
	down, _ := intstr.GetScaledValueFromIntOrPercent(intstr.ValueOrDefault(config.MaxUnavailable, one), total, false)
	if up == 0 && down == 0 {
		down = 1
	}
	// Their sum with the replicas is a number of replicas, too.
	return int32(min(up, math.MaxInt32-total)), int32(min(down, total))
}
