package rollout

import (
	"cmp"
	"strings"
	"time"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/preservation"
	"github.com/millwright-dev/millwright/internal/pool/deletion"
)

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
func (n Named) since(r *Rollout) string {
	was := ""
	if n.Machine != nil {
		was = deletion.Marked(n.Machine)
	}
	return cmp.Or(n.Time, r.Deployment.Annotations[v1alpha1.AnnotationKeyLastReplicaChange], was, r.Now.UTC().Format(time.RFC3339))
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

// planMarks marks the Machines named for deletion. Scaled before that, a set would delete others.
func planMarks(r *Rollout) []Operation {
	var operations []Operation
	for _, n := range r.Named {
		if since := n.since(r); n.pending(r.Now) && deletion.Marked(n.Machine) != since {
			operations = append(operations, Operation{
				Action: Mark, Set: r.setOf(n.Machine), Machine: n.Machine, Since: since, Reason: "the autoscaler named it for deletion",
			})
		}
	}
	return operations
}

// pendingNames returns the annotation with the Machines that are still to be deleted.
func pendingNames(r *Rollout) string {
	var entries []string
	for _, n := range r.Named {
		if n.pending(r.Now) {
			entries = append(entries, n.Name+"~"+n.since(r))
		}
	}
	return strings.Join(entries, ",")
}

// scaledAt returns when an autoscaler last scaled the deployment; empty if none did. One that names
// Machines in the old form may not write that. Then it is the time that the names get, so that their sets
// delete them at once, as in MCM.
func scaledAt(r *Rollout) string {
	at := r.Deployment.Annotations[v1alpha1.AnnotationKeyLastReplicaChange]
	for _, n := range r.Named {
		if at == "" && n.Time == "" && n.pending(r.Now) {
			at = n.since(r)
		}
	}
	return at
}
