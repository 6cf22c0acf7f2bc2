package machinedeployment

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/preservation"
)

// chosen is the priority of a Machine that was named for deletion.
const chosen = "1"

// parseNamed reads the annotation by which an autoscaler names Machines: NAME~TIME,
// separated by commas, or in its old form NAME only. What is neither is left out. Of a name
// that comes twice the latest time counts: a Machine bears one mark.
func parseNamed(text string) []named {
	var entries []named
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
			entries = append(entries, named{name: name, at: at})
		case when.After(times[name]):
			entries[before].at = at
		default:
			continue
		}
		times[name] = when
	}
	return entries
}

// since is when a Machine was named. In the old form that is when the deployment was last
// scaled, or else when it was marked.
func (n named) since(f facts) string {
	was := ""
	if n.machine != nil && n.machine.Annotations[v1alpha1.AnnotationKeyMachinePriority] == chosen {
		was = n.machine.Annotations[v1alpha1.AnnotationKeyMarkedForDeletionTime]
	}
	return cmp.Or(n.at, f.deployment.Annotations[v1alpha1.AnnotationKeyLastReplicaChange], was, f.now.UTC().Format(time.RFC3339))
}

// stays reports whether nobody has deleted a named Machine yet.
func (n named) stays() bool { return n.machine != nil && n.machine.DeletionTimestamp.IsZero() }

// goes reports whether a named Machine is still to be deleted. One that failed is replaced
// by its set, or gone without replacement if the set has one too many; but if it is preserved,
// its set has to know that no other goes in its place.
func (n named) goes(now time.Time) bool {
	if !n.stays() {
		return false
	}
	switch n.machine.Status.CurrentStatus.Phase {
	case v1alpha1.MachineTerminating:
		return false
	case v1alpha1.MachineFailed:
		return preservation.Active(n.machine, now)
	default:
		return true
	}
}

// marked reports whether the sets can see that a Machine was named.
func (n named) marked(since string) bool {
	return n.machine.Annotations[v1alpha1.AnnotationKeyMachinePriority] == chosen &&
		n.machine.Annotations[v1alpha1.AnnotationKeyMarkedForDeletionTime] == since
}

// seenAsNamed reports whether a Machine counts for its set as one that was named: it was so before
// or when the deployment was last scaled, as far as the set was told. The rule is MCM's.
func seenAsNamed(machine *v1alpha1.Machine, set *v1alpha1.MachineSet) bool {
	if machine.Annotations[v1alpha1.AnnotationKeyMachinePriority] != chosen {
		return false
	}
	marked, err := time.Parse(time.RFC3339, machine.Annotations[v1alpha1.AnnotationKeyMarkedForDeletionTime])
	if err != nil {
		return false
	}
	scaled, err := time.Parse(time.RFC3339, set.Annotations[v1alpha1.AnnotationKeyLastReplicaChange])
	return err == nil && !marked.After(scaled)
}

// planNamed marks the Machines that an autoscaler named for deletion. No set is scaled
// before all marks are seen: it would delete another Machine.
func planNamed(f facts) []operation {
	var operations []operation
	for _, n := range f.named {
		if since := n.since(f); n.goes(f.now) && !n.marked(since) && !slices.Contains(f.unmarked, n.name) {
			operations = append(operations, operation{action: mark, machine: n.machine, since: since, reason: "the autoscaler named it for deletion"})
		}
	}
	return operations
}

// withhold leaves out what scales sets down of which a named Machine could not be marked.
func withhold(f facts, operations []operation) []operation {
	return slices.DeleteFunc(slices.Clone(operations), func(op operation) bool {
		return op.action == scale && op.replicas < asked(op.set) && withheld(f, op.set)
	})
}

// withheld reports whether a set is not scaled down, since a named Machine of it could not be marked.
func withheld(f facts, set *v1alpha1.MachineSet) bool {
	return slices.ContainsFunc(f.named, func(n named) bool { return slices.Contains(f.unmarked, n.name) && controlledBy(n.machine, set) })
}

// leaveUnmarked takes note of a Machine that could not be marked.
func (f *facts) leaveUnmarked(name string, why error) {
	const most = 3 // there may be thousands, mostly for the same reason
	f.unmarked = append(f.unmarked, name)
	if len(f.unmarkedWhy) < most {
		f.unmarkedWhy = append(f.unmarkedWhy, why)
	}
}

// whyUnmarked says to users why Machines could not be marked; nil if all could.
func whyUnmarked(f facts) error {
	why := errors.Join(f.unmarkedWhy...)
	if more := len(f.unmarked) - len(f.unmarkedWhy); more > 0 {
		return fmt.Errorf("%w\nand %d more", why, more)
	}
	return why
}

// recordNamed keeps the entries of Machines that are still to be deleted.
func recordNamed(f facts, deployment *v1alpha1.MachineDeployment) {
	var entries []string
	for _, n := range f.named {
		if n.goes(f.now) {
			entries = append(entries, n.name+"~"+n.since(f))
		}
	}
	if len(entries) == 0 {
		delete(deployment.Annotations, v1alpha1.AnnotationKeyTriggerDeletion)
		return
	}
	metav1.SetMetaDataAnnotation(&deployment.ObjectMeta, v1alpha1.AnnotationKeyTriggerDeletion, strings.Join(entries, ","))
}

// controlledBy reports whether a set controls a Machine.
func controlledBy(machine *v1alpha1.Machine, set *v1alpha1.MachineSet) bool {
	owner := metav1.GetControllerOfNoCopy(machine)
	return owner != nil && owner.UID == set.UID
}
