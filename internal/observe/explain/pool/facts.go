// Package pool explains a MachineSet or MachineDeployment: why it does not have the Machines that
// it wants. It is pure: facts come in, a report goes out.
package pool

import (
	"cmp"
	"maps"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/machinedeployment/revision"
	"github.com/millwright-dev/millwright/internal/lifecycle/noderef"
	"github.com/millwright-dev/millwright/internal/lifecycle/preservation"
	"github.com/millwright-dev/millwright/internal/observe/explain/machine"
	"github.com/millwright-dev/millwright/internal/observe/explain/report"
)

// The kinds of pools.
const (
	Set        = "MachineSet"
	Deployment = "MachineDeployment"
)

// MostExamples is how many Machines of a pool are looked at in all detail, each of which costs
// about a dozen requests.
const MostExamples = 4

// Facts is all that the explanation of a set or deployment is made from. Nothing of it is changed.
type Facts struct {
	// Kind is Set or Deployment, and Key names the one that is asked about.
	Kind string
	Key  types.NamespacedName
	// Deployment is the one that is asked about, or whose the set is; nil if there is none.
	Deployment *v1alpha1.MachineDeployment
	// Sets are the one that is asked about, or those of the deployment, the oldest first.
	Sets []v1alpha1.MachineSet
	// Machines are those of the sets.
	Machines []v1alpha1.Machine
	// SetsUnread and MachinesUnread report that they could not be listed: there may be some.
	SetsUnread, MachinesUnread bool
	// Examples are the facts of some Machines that are not well, by name.
	Examples map[string]machine.Facts
	// Names are those of the objects of the kind that there are in the namespace; filled
	// only if there is none of the name that is asked about.
	Names []string
	// Events are those on the deployment and the sets, in the order of their times.
	Events report.Events
	// Lease is the one that the manager of sets and deployments holds, MachineLease that of
	// the manager of their Machines; nil if there is none.
	Lease, MachineLease *coordinationv1.Lease
	// Unread says what could not be read, and why.
	Unread []string
}

// Exists reports whether there is what is asked about.
func (f *Facts) Exists() bool {
	if f.Kind == Deployment {
		return f.Deployment != nil
	}
	return len(f.Sets) > 0
}

// current is the set that is to have the Machines: that of the deployment's template, or the
// one that is asked about. Nil if there is none yet.
func (f *Facts) current() *v1alpha1.MachineSet {
	if f.Kind == Set {
		return &f.Sets[0]
	}
	sets := make([]*v1alpha1.MachineSet, len(f.Sets))
	for i := range f.Sets {
		sets[i] = &f.Sets[i]
	}
	return revision.Current(sets, &f.Deployment.Spec.Template)
}

// Kept is how many of the Machines of a set are kept since they are preserved, of those that
// are beyond what it asks for.
func Kept(machines []*v1alpha1.Machine, beyond int32, now time.Time) int32 {
	var kept int32
	for _, machine := range machines {
		if machine.DeletionTimestamp.IsZero() && preservation.Active(machine, now) {
			kept++
		}
	}
	return min(kept, max(0, beyond))
}

// of are the Machines of a set.
func (f *Facts) of(set *v1alpha1.MachineSet) []*v1alpha1.Machine {
	var owned []*v1alpha1.Machine
	for i := range f.Machines {
		if metav1.IsControlledBy(&f.Machines[i], set) {
			owned = append(owned, &f.Machines[i])
		}
	}
	return owned
}

// leaving reports whether a Machine is being deleted, so that its set does not count it.
func leaving(machine *v1alpha1.Machine) bool { return !machine.DeletionTimestamp.IsZero() }

// usable reports whether a Machine is as far as it can come.
func usable(machine *v1alpha1.Machine) bool {
	phase := machine.Status.CurrentStatus.Phase
	return !leaving(machine) && (phase == v1alpha1.MachineRunning || phase == v1alpha1.MachineAvailable)
}

// group are Machines that are not well for what seems to be the same cause, the one whose
// state is newest first.
type group []*v1alpha1.Machine

// Representatives returns the Machines that stand for the others, most important first: one for each of
// the first causes.
func (f *Facts) Representatives() []*v1alpha1.Machine {
	var some []*v1alpha1.Machine
	for _, g := range f.groups(f.Machines) {
		if len(some) < MostExamples {
			some = append(some, g[0])
		}
	}
	return some
}

// groups sorts the Machines that are not well by their state: first those of the newest
// template, which a rollout waits for, and last those that are being deleted; else the largest
// group first.
func (f *Facts) groups(machines []v1alpha1.Machine) []group {
	same := map[state]group{}
	for i := range machines {
		if machine := &machines[i]; !usable(machine) {
			same[stateOf(machine)] = append(same[stateOf(machine)], machine)
		}
	}
	if len(same) == 0 {
		return nil // there may be no set
	}
	for _, g := range same {
		slices.SortFunc(g, func(a, b *v1alpha1.Machine) int {
			newer := b.Status.LastOperation.LastUpdateTime.Compare(a.Status.LastOperation.LastUpdateTime.Time)
			return cmp.Or(newer, cmp.Compare(a.Name, b.Name))
		})
	}
	current := f.current()
	return slices.SortedFunc(maps.Values(same), func(a, b group) int {
		return cmp.Or(a.rank(current)-b.rank(current), len(b)-len(a), cmp.Compare(a[0].Name, b[0].Name))
	})
}

// rank says which groups come first, by the set of the newest template; nil is none.
func (g group) rank(current *v1alpha1.MachineSet) int {
	newest := func(machine *v1alpha1.Machine) bool { return current != nil && metav1.IsControlledBy(machine, current) }
	switch {
	case leaving(g[0]):
		return 2
	case slices.ContainsFunc(g, newest):
		return 0
	}
	return 1
}

// state is what Machines that are not well for the same cause have in common. That of the node is
// the first of its conditions that is bad.
type state struct {
	leaving   bool
	phase     v1alpha1.MachinePhase
	operation v1alpha1.MachineOperationType
	result    v1alpha1.MachineState
	code      string
	condition string
}

func stateOf(machine *v1alpha1.Machine) state {
	last := machine.Status.LastOperation
	s := state{leaving: leaving(machine), operation: last.Type, result: last.State}
	if s.leaving {
		return s
	}
	s.phase, s.code = machine.Status.CurrentStatus.Phase, last.ErrorCode
	if s.code == "" {
		for _, condition := range machine.Status.Conditions {
			if !noderef.Healthy([]corev1.NodeCondition{condition}, noderef.DefaultBadConditions) {
				s.condition = string(condition.Type)
				break
			}
		}
	}
	return s
}
