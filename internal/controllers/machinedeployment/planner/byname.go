package planner

import (
	"cmp"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/preservation"
)

// FirstPriority is the priority of a Machine that was named for deletion.
const FirstPriority = "1"

// Named is an entry of the annotation by which an autoscaler names Machines for deletion.
type Named struct {
	// Name of the Machine.
	Name string
	// Time at which it was named, as written there; empty in the old form, which has names only.
	Time string
	// Machine of that name, if it exists and is the deployment's.
	Machine *v1alpha1.Machine
}

// ParseNamed reads the annotation by which an autoscaler names Machines: NAME~TIME, separated by
// commas, or in its old form NAME only. What is neither is left out. Of a name that occurs twice the
// latest time counts.
func ParseNamed(text string) []Named {
	var entries []Named
	times, known := map[string]time.Time{}, map[string]int{}
	for entry := range strings.SplitSeq(text, ",") {
		name, at, timed := strings.Cut(strings.TrimSpace(entry), "~")
		when, err := time.Parse(time.RFC3339, at)
		if name == "" || timed && err != nil {
			continue
		}
		before, twice := known[name]
		switch {
		case !twice:
			known[name] = len(entries)
			entries = append(entries, Named{Name: name, Time: at})
		case when.After(times[name]):
			entries[before].Time = at
		default:
			continue
		}
		times[name] = when
	}
	return entries
}

// since returns when a Machine was named. In the old form that is when the deployment was last
// scaled, or else when the Machine was marked.
func (n Named) since(f Facts) string {
	was := ""
	if n.Machine != nil && n.Machine.Annotations[v1alpha1.AnnotationKeyMachinePriority] == FirstPriority {
		was = n.Machine.Annotations[v1alpha1.AnnotationKeyMarkedForDeletionTime]
	}
	return cmp.Or(n.Time, f.Deployment.Annotations[v1alpha1.AnnotationKeyLastReplicaChange], was, f.Now.UTC().Format(time.RFC3339))
}

// exists reports whether the Machine exists and is not being deleted.
func (n Named) exists() bool { return n.Machine != nil && n.Machine.DeletionTimestamp.IsZero() }

// pending reports whether the Machine is still to be deleted by its name. A failed one is replaced
// by its set, or goes without replacement if the set has one too many; but if it is preserved, its
// set has to know that no other goes in its place.
func (n Named) pending(now time.Time) bool {
	if !n.exists() {
		return false
	}
	switch n.Machine.Status.CurrentStatus.Phase {
	case v1alpha1.MachineTerminating:
		return false
	case v1alpha1.MachineFailed:
		return preservation.Active(n.Machine, now)
	default:
		return true
	}
}

// Marked reports whether a Machine is marked as named for deletion at that time.
func Marked(machine *v1alpha1.Machine, since string) bool {
	return machine.Annotations[v1alpha1.AnnotationKeyMachinePriority] == FirstPriority &&
		machine.Annotations[v1alpha1.AnnotationKeyMarkedForDeletionTime] == since
}

// countsAsNamed reports whether a Machine counts for its set as one that was named: no later than
// the deployment was last scaled, as far as the set has been told. The rule is MCM's.
func countsAsNamed(machine *v1alpha1.Machine, set *v1alpha1.MachineSet) bool {
	if machine.Annotations[v1alpha1.AnnotationKeyMachinePriority] != FirstPriority {
		return false
	}
	marked, err := time.Parse(time.RFC3339, machine.Annotations[v1alpha1.AnnotationKeyMarkedForDeletionTime])
	if err != nil {
		return false
	}
	scaled, err := time.Parse(time.RFC3339, set.Annotations[v1alpha1.AnnotationKeyLastReplicaChange])
	return err == nil && !marked.After(scaled)
}

// planMarks marks the Machines named for deletion. No set is scaled before the cache shows the marks:
// it would delete another Machine.
func planMarks(f Facts) []Operation {
	var operations []Operation
	for _, n := range f.Named {
		if since := n.since(f); n.pending(f.Now) && !Marked(n.Machine, since) {
			operations = append(operations, Operation{
				Action: Mark, Set: f.setOf(n.Machine), Machine: n.Machine, Since: since, Reason: "the autoscaler named it for deletion",
			})
		}
	}
	return operations
}

// pendingNames returns the annotation with the Machines that are still to be deleted.
func pendingNames(f Facts) string {
	var entries []string
	for _, n := range f.Named {
		if n.pending(f.Now) {
			entries = append(entries, n.Name+"~"+n.since(f))
		}
	}
	return strings.Join(entries, ",")
}

// setOf returns the set that controls a Machine; nil if none does.
func (f Facts) setOf(machine *v1alpha1.Machine) *v1alpha1.MachineSet {
	all := f.All()
	if at := slices.IndexFunc(all, func(set *v1alpha1.MachineSet) bool { return controlledBy(machine, set) }); at >= 0 {
		return all[at]
	}
	return nil
}

// Controls reports whether one of the sets controls a Machine.
func (f Facts) Controls(machine *v1alpha1.Machine) bool { return f.setOf(machine) != nil }

// controlledBy reports whether a set controls a Machine.
func controlledBy(machine *v1alpha1.Machine, set *v1alpha1.MachineSet) bool {
	owner := metav1.GetControllerOfNoCopy(machine)
	return owner != nil && owner.UID == set.UID
}
