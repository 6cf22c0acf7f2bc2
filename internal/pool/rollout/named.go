package rollout

import (
	"cmp"
	"strings"
	"time"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/preservation"
	"github.com/millwright-dev/millwright/internal/pool/deletion"
)

// Named is an entry of the annotation in which an autoscaler names Machines for deletion.
type Named struct {
	// Name of the Machine.
	Name string
	// Time is when it was named, as written in the annotation. It is empty in the old format, which has only
	// names.
	Time string
	// Machine is the Machine of that name, if it exists and belongs to the deployment.
	Machine *v1alpha1.Machine
}

// ParseNamed parses the annotation in which an autoscaler names Machines. Entries have the form NAME~TIME or,
// in the old format, NAME, and are separated by commas. Invalid entries are ignored. If a name occurs twice,
// the latest time is used.
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

// since returns when a Machine was named. In the old format, that is the time of the last scaling or mark.
func (n Named) since(r *Rollout) string {
	was := ""
	if n.Machine != nil {
		was = deletion.Marked(n.Machine)
	}
	return cmp.Or(n.Time, r.Deployment.Annotations[v1alpha1.AnnotationKeyLastReplicaChange], was, r.Now.UTC().Format(time.RFC3339))
}

// exists reports whether the Machine exists and is not being deleted.
func (n Named) exists() bool { return n.Machine != nil && n.Machine.DeletionTimestamp.IsZero() }

// pending reports whether the Machine must still be deleted by name. Its set deletes a Failed Machine anyway.
// But if the Machine is preserved, the set must know not to delete another one instead.
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

// planMarks marks the Machines named for deletion. If a set were scaled down before that, it would delete
// others.
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

// pendingNames returns the annotation value with the Machines that are still to be deleted.
func pendingNames(r *Rollout) string {
	var entries []string
	for _, n := range r.Named {
		if n.pending(r.Now) {
			entries = append(entries, n.Name+"~"+n.since(r))
		}
	}
	return strings.Join(entries, ",")
}

// scaledAt returns when an autoscaler last scaled the deployment. If none did, it returns the latest time at which
// a Machine was named, so that the sets delete all named Machines immediately, as in MCM. It returns an empty string
// if no Machine is named either.
func scaledAt(r *Rollout) string {
	if at := r.Deployment.Annotations[v1alpha1.AnnotationKeyLastReplicaChange]; at != "" {
		return at
	}
	latest := ""
	for _, n := range r.Named {
		if since := n.since(r); n.pending(r.Now) && isAfter(since, latest) {
			latest = since
		}
	}
	return latest
}

// isAfter compares two times in RFC 3339 format. An empty or invalid time is before all others.
func isAfter(a, b string) bool {
	at, err := time.Parse(time.RFC3339, a)
	other, _ := time.Parse(time.RFC3339, b)
	return err == nil && at.After(other)
}

// upgradedAt returns the time that the deployment gets because Machines are named in the old format, in which
// autoscalers may not write when they scaled it. It returns an empty string if that is not necessary.
func upgradedAt(r *Rollout) string {
	if r.Deployment.Annotations[v1alpha1.AnnotationKeyLastReplicaChange] != "" {
		return ""
	}
	for _, n := range r.Named {
		if n.Time == "" && n.pending(r.Now) {
			return scaledAt(r)
		}
	}
	return ""
}
