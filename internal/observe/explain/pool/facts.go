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

// Facts is the input of an explanation of a set or deployment. It is not modified.
type Facts struct {
	// Kind is explain.KindSet or explain.KindDeployment, and Key is the name of the object.
	Kind string
	Key  types.NamespacedName
	// Deployment is the explained deployment, or the owner of the explained set. It is nil if there is none.
	Deployment *v1alpha1.MachineDeployment
	// Sets contains the explained set, or the sets of the deployment, the oldest first.
	Sets []*v1alpha1.MachineSet
	// Machines contains the Machines of the sets.
	Machines []*v1alpha1.Machine
	// SetsUnread and MachinesUnread report whether the sets and the Machines could not be listed.
	SetsUnread, MachinesUnread bool
	// Examples contains the facts about some of the unhealthy Machines, by name.
	Examples map[string]explain.MachineFacts
	// Names contains the names of the objects of the same kind in the namespace if the explained object does not
	// exist.
	Names []string
	// Events are the events on the deployment, its sets and Machines, sorted by time.
	Events report.Events
	// Lease is the lease of the manager of sets and deployments, and MachineLease that of the manager of their
	// Machines. They are nil if there is none.
	Lease, MachineLease *coordinationv1.Lease
	// Unread lists what could not be read, and why.
	Unread []string
}

// Exists reports whether the explained object exists.
func (f *Facts) Exists() bool {
	return f.Kind == explain.KindDeployment && f.Deployment != nil || f.Kind == explain.KindSet && len(f.Sets) > 0
}

// Own adds the sets that the deployment controls, and sorts them by age, the oldest first.
func (f *Facts) Own(sets []v1alpha1.MachineSet) {
	for i := range sets {
		if metav1.IsControlledBy(&sets[i], f.Deployment) {
			f.Sets = append(f.Sets, &sets[i])
		}
	}
	slices.SortFunc(f.Sets, revision.Older)
}

// OwnMachines adds the machines that the sets control.
func (f *Facts) OwnMachines(machines []v1alpha1.Machine) {
	for i := range machines {
		machine := &machines[i]
		if slices.ContainsFunc(f.Sets, func(set *v1alpha1.MachineSet) bool { return metav1.IsControlledBy(machine, set) }) {
			f.Machines = append(f.Machines, machine)
		}
	}
}

// Current returns the set with the latest template. It returns nil if there is none.
func (f *Facts) Current() *v1alpha1.MachineSet {
	if f.Kind == explain.KindSet {
		return f.Sets[0]
	}
	return revision.Current(f.Sets, &f.Deployment.Spec.Template)
}

// ClassChange returns how the deployment's machines get another class without being replaced. It returns nil if
// they do not, or if the sets or machines could not be read.
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

// IsAnyDeleting reports whether any machine is being deleted.
func (f *Facts) IsAnyDeleting() bool {
	return slices.ContainsFunc(f.Machines, func(machine *v1alpha1.Machine) bool { return report.IsDeleting(machine) })
}
