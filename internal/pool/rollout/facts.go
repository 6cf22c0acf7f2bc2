// Package rollout plans the changes that bring a MachineDeployment closer to its spec.
//
// It is pure: it reads no clock and no API. Each pass computes a Rollout from Facts, and a list of Operations
// from the Rollout. Each Operation has a reason.
package rollout

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/preservation"
	"github.com/millwright-dev/millwright/internal/pool/counts"
	"github.com/millwright-dev/millwright/internal/pool/deletion"
	"github.com/millwright-dev/millwright/internal/pool/liveupdate"
	"github.com/millwright-dev/millwright/internal/pool/revision"
)

// Facts are the input of a plan and of a status. They are read-only.
type Facts struct {
	// Deployment is the deployment to plan for.
	Deployment *v1alpha1.MachineDeployment
	// Current is the set that has the deployment's template. It is nil if no such set exists yet.
	Current *v1alpha1.MachineSet
	// Old are the sets of other templates and sets that are being deleted, the oldest first.
	Old []*v1alpha1.MachineSet
	// Orphans are sets without a controller that the selector matches.
	Orphans []*v1alpha1.MachineSet
	// Released are sets that were created for the deployment, have Machines and no controller, and no longer
	// match the deployment's selector.
	Released []*v1alpha1.MachineSet
	// Overlaps are the names of other deployments that select the same Machines.
	Overlaps []string
	// Named are the entries of the annotation in which an autoscaler names Machines for deletion.
	Named []Named
	// Retained is how many preserved Machines each set keeps beyond its replicas, by the name of the set.
	Retained map[string]int32
	// Machines are the Machines of all sets, by the names of the sets. They are set only if nodes can be updated
	// in place. Without them, a deployment with the strategy InPlaceUpdate does not change its Machines.
	Machines map[string][]*v1alpha1.Machine
	// Nodes are the nodes of the Machines. They are nil if they were not read. TargetAway reports that they were
	// not read because their cluster does not respond.
	Nodes      *Nodes
	TargetAway bool
	// LiveUpdate is the live update of the Machines to another class. It is nil if the template is rolled out as
	// usual.
	LiveUpdate *liveupdate.Pool
	// Now is the time of the pass.
	Now time.Time
}

// Nodes are the nodes of a deployment's Machines.
type Nodes struct {
	// OfOld are the nodes of old sets, and OfCurrent those of the current set.
	OfOld, OfCurrent []Node
	// Protect reports whether a rollout prevents autoscalers from removing nodes.
	Protect bool
	// Stale reports whether nodes are missing because the cache does not show the last write to them.
	Stale bool
	// Behind reports whether a Machine's status shows a completed in-place update that the cached node does not show
	// yet.
	Behind bool
	// AwaitingSince is the time since when a node has been a candidate for an in-place update without a response
	// from a machine controller. It is zero if all candidates got a response.
	AwaitingSince time.Time
}

// Node is a Node and its Machine.
type Node struct {
	Machine *v1alpha1.Machine
	Node    *corev1.Node
}

// NewFacts returns facts with the deployment's sets sorted into Current and Old. The caller fills in the other
// fields.
func NewFacts(deployment *v1alpha1.MachineDeployment, sets []*v1alpha1.MachineSet, now time.Time) Facts {
	f := Facts{Deployment: deployment, Now: now}
	sets = slices.Clone(sets)
	slices.SortFunc(sets, revision.Older)
	f.Current = revision.Current(sets, &deployment.Spec.Template)
	f.Old = slices.DeleteFunc(sets, func(set *v1alpha1.MachineSet) bool { return set == f.Current })
	return f
}

// All returns all sets, the current one last. The caller owns the slice.
func (f Facts) All() []*v1alpha1.MachineSet {
	all := slices.Clone(f.Old)
	if f.Current != nil {
		all = append(all, f.Current)
	}
	return all
}

// HasMachines reports whether a set has Machines. It is always false if the deployment is not updated in place.
func (f Facts) HasMachines(set *v1alpha1.MachineSet) bool { return len(f.Machines[set.Name]) > 0 }

// Counted returns how many Machines of a set exist, without retained ones. Rollouts do not wait for retained
// Machines and do not count them towards the surge.
func (f Facts) Counted(set *v1alpha1.MachineSet) int32 {
	return max(0, counts.Existing(set)-f.Retained[set.Name])
}

// setOf returns the set that controls a Machine, or nil.
func (f Facts) setOf(machine *v1alpha1.Machine) *v1alpha1.MachineSet {
	for _, set := range f.All() {
		if metav1.IsControlledBy(machine, set) {
			return set
		}
	}
	return nil
}

// Controls reports whether one of the sets controls a Machine.
func (f Facts) Controls(machine *v1alpha1.Machine) bool { return f.setOf(machine) != nil }

// Retained returns how many Machines a set keeps beyond its replicas. A set does not delete preserved Machines.
// If a preserved Machine is named for deletion, the set does not delete another one instead.
func Retained(set *v1alpha1.MachineSet, machines []*v1alpha1.Machine, now time.Time) int32 {
	var active, preserved, named int32
	for _, machine := range machines {
		if !counts.Active(machine) {
			continue
		}
		active++
		if preservation.Active(machine, now) {
			preserved++
			if deletion.Named(machine, set) {
				named++
			}
		}
	}
	beyond := max(preserved-counts.Desired(set), min(named, active-counts.Desired(set)))
	return max(0, min(beyond, counts.Existing(set)-counts.Desired(set)))
}
