package rollout

import (
	"cmp"
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
// commas, or in its old form NAME only. Other entries are left out. If a name occurs twice, the latest
// time counts.
func ParseNamed(text string) []Named {
	var entries []Named
	known := map[string]int{}
	for entry := range strings.SplitSeq(text, ",") {
		name, at, timed := strings.Cut(strings.TrimSpace(entry), "~")
		when, err := time.Parse(time.RFC3339, at)
		if name == "" || timed && err != nil {
			continue
		}
		i, twice := known[name]
		if !twice {
			known[name] = len(entries)
			entries = append(entries, Named{Name: name, Time: at})
		} else if before, _ := time.Parse(time.RFC3339, entries[i].Time); when.After(before) {
			entries[i].Time = at
		}
	}
	return entries
}

// since returns when a Machine was named. The old form has no time: the last scaling or mark counts.
func (n Named) since(f Facts) string {
	was := ""
	if n.Machine != nil && n.Machine.Annotations[v1alpha1.AnnotationKeyMachinePriority] == FirstPriority {
		was = n.Machine.Annotations[v1alpha1.AnnotationKeyMarkedForDeletionTime]
	}
	return cmp.Or(n.Time, f.Deployment.Annotations[v1alpha1.AnnotationKeyLastReplicaChange], was, f.Now.UTC().Format(time.RFC3339))
}

// exists reports whether the Machine exists and is not being deleted.
func (n Named) exists() bool { return n.Machine != nil && n.Machine.DeletionTimestamp.IsZero() }

// pending reports whether the Machine is still to be deleted by its name. Its set deletes a Failed one
// in any case; but if it is preserved, the set must know that no other is deleted instead.
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

// planMarks marks the Machines named for deletion. Scaled before that, a set would delete others.
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

// scaledAt returns when an autoscaler last scaled the deployment; empty if none did. One that names
// Machines in the old form may not write that. Then it is the time that the names get, so that their sets
// delete them at once, as in MCM.
func scaledAt(f Facts) string {
	at := f.Deployment.Annotations[v1alpha1.AnnotationKeyLastReplicaChange]
	for _, n := range f.Named {
		if at == "" && n.Time == "" && n.pending(f.Now) {
			at = n.since(f)
		}
	}
	return at
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
