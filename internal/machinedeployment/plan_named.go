package machinedeployment

import (
	"cmp"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// chosen is the priority of a Machine that was named for deletion.
const chosen = "1"

// parseNamed reads the annotation by which an autoscaler names Machines: NAME~TIME,
// separated by commas, or in its old form NAME only. What is neither is left out.
func parseNamed(text string) []named {
	var entries []named
	for entry := range strings.SplitSeq(text, ",") {
		name, at, timed := strings.Cut(strings.TrimSpace(entry), "~")
		if timed {
			if _, err := time.Parse(time.RFC3339, at); err != nil {
				continue
			}
		}
		if name != "" {
			entries = append(entries, named{name: name, at: at})
		}
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

// stays tells whether nobody has deleted a named Machine yet.
func (n named) stays() bool { return n.machine != nil && n.machine.DeletionTimestamp.IsZero() }

// goes tells whether a named Machine is still to be deleted. One that failed is replaced
// by its set, or gone without replacement if the set has one too many.
func (n named) goes() bool {
	if !n.stays() {
		return false
	}
	phase := n.machine.Status.CurrentStatus.Phase
	return phase != v1alpha1.MachineFailed && phase != v1alpha1.MachineTerminating
}

// marked tells whether the sets can see that a Machine was named.
func (n named) marked(since string) bool {
	return n.machine.Annotations[v1alpha1.AnnotationKeyMachinePriority] == chosen &&
		n.machine.Annotations[v1alpha1.AnnotationKeyMarkedForDeletionTime] == since
}

// planNamed marks the Machines that an autoscaler named for deletion. No set is scaled
// before all marks are seen: it would delete another Machine.
func planNamed(f facts) []operation {
	var operations []operation
	for _, n := range f.named {
		if since := n.since(f); n.goes() && !n.marked(since) {
			operations = append(operations, operation{action: mark, machine: n.machine, since: since, reason: "the autoscaler named it for deletion"})
		}
	}
	return operations
}

// recordNamed keeps the entries of Machines that are still to be deleted.
func recordNamed(f facts, deployment *v1alpha1.MachineDeployment) {
	var entries []string
	for _, n := range f.named {
		if n.goes() {
			entries = append(entries, n.name+"~"+n.since(f))
		}
	}
	if len(entries) == 0 {
		delete(deployment.Annotations, v1alpha1.AnnotationKeyTriggerDeletion)
		return
	}
	metav1.SetMetaDataAnnotation(&deployment.ObjectMeta, v1alpha1.AnnotationKeyTriggerDeletion, strings.Join(slices.Compact(entries), ","))
}

// controlledBy tells whether a set controls a Machine.
func controlledBy(machine *v1alpha1.Machine, set *v1alpha1.MachineSet) bool {
	owner := metav1.GetControllerOfNoCopy(machine)
	return owner != nil && owner.UID == set.UID
}
