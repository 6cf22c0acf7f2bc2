// Package rollout plans what brings a MachineDeployment closer to its goal.
//
// It is pure: from Facts follows a Rollout, once per pass, and from that the Operations of the plan, each with its
// reason. It reads no clock and no API.
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
	// Machines are those of all sets, by the names of the sets, if their nodes can be updated in place. Without them, the
	// Machines of a deployment with that strategy stay as they are.
	Machines map[string][]*v1alpha1.Machine
	// Nodes of the Machines; nil if they were not read. TargetAway reports whether that is because
	// their cluster does not respond.
	Nodes      *Nodes
	TargetAway bool
	// LiveUpdate is that of Machines to another class; nil if the template is rolled out as usual.
	LiveUpdate *liveupdate.Pool
	// Now is the time of the pass.
	Now time.Time
}

// Nodes are the nodes of a deployment's Machines.
type Nodes struct {
	// OfOld are the nodes of old sets, OfCurrent those of the current one.
	OfOld, OfCurrent []Node
	// Protect reports whether a rollout keeps autoscalers from removing nodes.
	Protect bool
	// Stale reports whether nodes are left out, since the cache does not show the last write to them.
	Stale bool
	// Behind reports whether a Machine says that its node was updated, which the cache does not show yet.
	Behind bool
	// UnansweredSince is since when a node has been a candidate for an in-place update to which no machine controller
	// has responded; zero if there is none.
	UnansweredSince time.Time
}

// Node is a Machine and its Node.
type Node struct {
	Machine *v1alpha1.Machine
	Node    *corev1.Node
}

// NewFacts sorts the sets that a deployment controls. The other facts are the caller's to fill in.
func NewFacts(deployment *v1alpha1.MachineDeployment, sets []*v1alpha1.MachineSet, now time.Time) Facts {
	f := Facts{Deployment: deployment, Now: now}
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

// HasMachines reports whether a set has Machines, in a deployment that is updated in place.
func (f Facts) HasMachines(set *v1alpha1.MachineSet) bool { return len(f.Machines[set.Name]) > 0 }

// Counted returns how many Machines of a set exist and are not retained. Rollouts do not wait for
// retained ones, nor count them towards the surge.
func (f Facts) Counted(set *v1alpha1.MachineSet) int32 {
	return max(0, counts.Existing(set)-f.Retained[set.Name])
}

// setOf returns the set that controls a Machine; nil if none does.
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

// Retained returns how many Machines a set keeps beyond its replicas: it deletes no preserved Machine,
// and no other instead of a preserved one that was named for deletion.
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
