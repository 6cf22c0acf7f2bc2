package pool

import (
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/observe/explain"
	"github.com/millwright-dev/millwright/internal/observe/explain/report"
	"github.com/millwright-dev/millwright/internal/pool/liveupdate"
	"github.com/millwright-dev/millwright/internal/pool/revision"
)

// Facts are what the explanation of a set or deployment is made from. Nothing of them is changed.
type Facts struct {
	// Kind is explain.KindSet or explain.KindDeployment, and Key names the object.
	Kind string
	Key  types.NamespacedName
	// Deployment is the explained one, or that of the explained set; nil if there is none.
	Deployment *v1alpha1.MachineDeployment
	// Sets are the explained one, or those of the deployment, the oldest first.
	Sets []*v1alpha1.MachineSet
	// Machines are those of the sets.
	Machines []*v1alpha1.Machine
	// SetsUnread and MachinesUnread report whether they could not be listed.
	SetsUnread, MachinesUnread bool
	// Examples are the facts of some Machines that are not well, by name.
	Examples map[string]explain.MachineFacts
	// Names are those of the kind in the namespace, if the explained object does not exist.
	Names []string
	// Events are those on the deployment, its sets and Machines, in the order of their times.
	Events report.Events
	// Lease is that of the manager of sets and deployments, MachineLease that of the manager of
	// their Machines; nil if there is none.
	Lease, MachineLease *coordinationv1.Lease
	// Unread says what could not be read, and why.
	Unread []string
}

// Exists reports whether the explained object exists.
func (f *Facts) Exists() bool {
	return f.Kind == explain.KindDeployment && f.Deployment != nil || f.Kind == explain.KindSet && len(f.Sets) > 0
}

// Own takes over the sets that the deployment controls, the oldest first.
func (f *Facts) Own(sets []v1alpha1.MachineSet) {
	for i := range sets {
		if metav1.IsControlledBy(&sets[i], f.Deployment) {
			f.Sets = append(f.Sets, &sets[i])
		}
	}
	slices.SortFunc(f.Sets, revision.Older)
}

// OwnMachines takes over the machines that the sets control.
func (f *Facts) OwnMachines(machines []v1alpha1.Machine) {
	for i := range machines {
		machine := &machines[i]
		if slices.ContainsFunc(f.Sets, func(set *v1alpha1.MachineSet) bool { return metav1.IsControlledBy(machine, set) }) {
			f.Machines = append(f.Machines, machine)
		}
	}
}

// Current returns the set of the newest template; nil if there is none.
func (f *Facts) Current() *v1alpha1.MachineSet {
	if f.Kind == explain.KindSet {
		return f.Sets[0]
	}
	return revision.Current(f.Sets, &f.Deployment.Spec.Template)
}

// ClassChange returns how the deployment's machines get another class without being replaced; nil if they do not, or if
// sets or machines are not known.
func (f *Facts) ClassChange(now time.Time) *liveupdate.Pool {
	if f.Kind != explain.KindDeployment || f.SetsUnread || f.MachinesUnread {
		return nil
	}
	current := f.Current()
	old := slices.DeleteFunc(slices.Clone(f.Sets), func(set *v1alpha1.MachineSet) bool { return set == current })
	change := liveupdate.Find(f.Deployment, current, old, now)
	if change != nil {
		change.Machines = f.Of(change.Set)
	}
	return change
}

// Of returns the machines of a set.
func (f *Facts) Of(set *v1alpha1.MachineSet) []*v1alpha1.Machine {
	return slices.DeleteFunc(slices.Clone(f.Machines), func(machine *v1alpha1.Machine) bool { return !metav1.IsControlledBy(machine, set) })
}

// AnyLeaves reports whether a machine is being deleted.
func (f *Facts) AnyLeaves() bool {
	return slices.ContainsFunc(f.Machines, func(machine *v1alpha1.Machine) bool { return report.Leaves(machine) })
}
