package explain

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/machinedeployment/revision"
	"github.com/millwright-dev/millwright/internal/lifecycle/preservation"
)

// The kinds of pools.
const (
	kindSet        = "MachineSet"
	kindDeployment = "MachineDeployment"
)

// PoolFacts is all that the explanation of a set or deployment is made from. Nothing of it
// is changed.
type PoolFacts struct {
	// Kind is MachineSet or MachineDeployment, and Key names the one that is asked about.
	Kind string
	Key  types.NamespacedName
	// Deployment is the one that is asked about, or whose the set is; nil if there is none.
	Deployment *v1alpha1.MachineDeployment
	// Sets are the one that is asked about, or those of the deployment, the oldest first.
	Sets []v1alpha1.MachineSet
	// Machines are those of the sets.
	Machines []v1alpha1.Machine
	// SetsUnread and MachinesUnread tell that they could not be listed: there may be some.
	SetsUnread, MachinesUnread bool
	// Examples are the facts of some Machines that are not well, by name.
	Examples map[string]Facts
	// Names are those of the objects of the kind that there are in the namespace; filled
	// only if there is none of the name that is asked about.
	Names []string
	// Events are those on the deployment and the sets, in the order of their times.
	Events []corev1.Event
	// Lease is the one that the manager of sets and deployments holds, MachineLease that of
	// the manager of their Machines; nil if there is none.
	Lease, MachineLease *coordinationv1.Lease
	// Unread says what could not be read, and why.
	Unread []string
}

// exists reports whether there is what is asked about.
func (f *PoolFacts) exists() bool {
	if f.Kind == kindDeployment {
		return f.Deployment != nil
	}
	return len(f.Sets) > 0
}

// current is the set that is to have the Machines: that of the deployment's template, or the
// one that is asked about. Nil if there is none yet.
func (f *PoolFacts) current() *v1alpha1.MachineSet {
	if f.Kind == kindSet {
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

// copied is what a Machine tells of its node: the manager copies the conditions into it.
func copied(machine *v1alpha1.Machine) Target {
	if len(machine.Status.Conditions) == 0 {
		return Target{}
	}
	node := &corev1.Node{Status: corev1.NodeStatus{Conditions: machine.Status.Conditions}}
	node.Name, node.CreationTimestamp = machine.Labels[v1alpha1.NodeLabelKey], machine.CreationTimestamp
	return Target{Node: node, Copied: true}
}

func revisionOf(object metav1.Object) string {
	return object.GetAnnotations()[v1alpha1.AnnotationKeyRevision]
}

// of are the Machines of a set.
func (f *PoolFacts) of(set *v1alpha1.MachineSet) []*v1alpha1.Machine {
	var owned []*v1alpha1.Machine
	for i := range f.Machines {
		if metav1.IsControlledBy(&f.Machines[i], set) {
			owned = append(owned, &f.Machines[i])
		}
	}
	return owned
}

// leaving reports whether a Machine is on its way out, so that its set does not count it.
func leavingPool(machine *v1alpha1.Machine) bool {
	return !machine.DeletionTimestamp.IsZero()
}

// usable reports whether a Machine is as far as it can come.
func usable(machine *v1alpha1.Machine) bool {
	phase := machine.Status.CurrentStatus.Phase
	return !leavingPool(machine) && (phase == v1alpha1.MachineRunning || phase == v1alpha1.MachineAvailable)
}

// group are Machines that are not well for what seems to be the same cause, the one whose
// state is newest first.
type group []*v1alpha1.Machine

// groups sorts the Machines that are not well by what is said of them: first those of the
// newest template, which a rollout waits for, and last those that are on their way out; else the
// largest group first.
func (f *PoolFacts) groups(machines []v1alpha1.Machine) []group {
	same := map[string]group{}
	for i := range machines {
		if machine := &machines[i]; !usable(machine) {
			key := complaint(machine)
			same[key] = append(same[key], machine)
		}
	}
	for _, g := range same {
		slices.SortFunc(g, func(a, b *v1alpha1.Machine) int {
			newer := b.Status.LastOperation.LastUpdateTime.Compare(a.Status.LastOperation.LastUpdateTime.Time)
			return cmp.Or(newer, cmp.Compare(a.Name, b.Name))
		})
	}
	if len(same) == 0 {
		return nil // there may be no set
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
	case leavingPool(g[0]):
		return 2
	case slices.ContainsFunc(g, newest):
		return 0
	}
	return 1
}

// complaint is what is said of a Machine, without what is its own.
func complaint(machine *v1alpha1.Machine) string {
	last := machine.Status.LastOperation
	if leavingPool(machine) {
		said, _, _ := strings.Cut(last.Description, ",")
		return "deleted " + strings.ReplaceAll(said, machine.Name, "")
	}
	if last.ErrorCode != "" {
		return string(machine.Status.CurrentStatus.Phase) + " " + last.ErrorCode
	}
	own := strings.NewReplacer(machine.Name, "", machine.Spec.ProviderID, "")
	if machine.Spec.ProviderID == "" {
		own = strings.NewReplacer(machine.Name, "")
	}
	return string(machine.Status.CurrentStatus.Phase) + " " + own.Replace(last.Description)
}
