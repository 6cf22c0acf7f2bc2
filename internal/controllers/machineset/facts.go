package machineset

import (
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// facts are what a plan is made from. Nothing in them may be changed: they come from
// the cache.
type facts struct {
	set *v1alpha1.MachineSet
	// owned are the Machines that the set controls.
	owned []*v1alpha1.Machine
	// strays are Machines without a controller that the selector matches.
	strays []*v1alpha1.Machine
	// certain reports whether the cache shows all that was written. If not, counting
	// Machines would create or delete too many, and a status would be wrong.
	certain bool
	// parent is the deployment of the set; nil if it has none.
	parent *v1alpha1.MachineDeployment
	// overshoot says when the set is frozen; nil: never.
	overshoot *Overshoot
	// enforceMinReady reports whether spec.minReadySeconds counts.
	enforceMinReady bool
	// edition of the set, and notBefore, the time before which it makes no Machines since
	// too many of that edition have failed.
	edition   edition
	notBefore time.Time
	// created is how many Machines this pass has made besides, and unknown how many it may have
	// made.
	created, unknown int32
	// removed are the UIDs of the Machines that this pass has deleted, or may have. Nil is none.
	removed map[types.UID]bool
	// changed are the versions of the Machines that this pass has changed, by their UIDs. Nil
	// is none.
	changed map[types.UID]string
	// inherited are the Machines that are known to have what they take over from the
	// template. Nil: none is known.
	inherited *inherited
	// orphaned tells that the set is deleted without its Machines, also when the garbage
	// collector has let go of those that it knew.
	orphaned bool
	// overlaps are the names of other sets that select the same Machines, in their order.
	overlaps []string
	now      time.Time
}

// note takes down the version that a Machine has after this pass has changed it.
func (f *facts) note(machine *v1alpha1.Machine, version string) {
	if f.changed == nil {
		f.changed = map[types.UID]string{}
	}
	f.changed[machine.UID] = version
}

// selected tells for each set of labels whether the set's selector matches them. No selector
// matches nothing. To parse the selector for each Machine would be most of a plan's cost.
func (f facts) selected() func(map[string]string) bool {
	parsed, err := metav1.LabelSelectorAsSelector(f.set.Spec.Selector)
	return func(set map[string]string) bool { return err == nil && parsed.Matches(labels.Set(set)) }
}

// over reports whether a set that is being deleted can be let go. Deleting one means: delete its
// Machines, or have them taken from it, then let go.
func (f facts) over() bool {
	return !f.set.DeletionTimestamp.IsZero() && !orphaning(f.set) && len(f.owned) == 0 && f.certain
}

// active reports whether a Machine counts: it is not on its way out. Its phase does not tell: one
// that is Terminating though nobody deletes it, as after a restore from a backup, stays.
func active(machine *v1alpha1.Machine) bool { return machine.DeletionTimestamp.IsZero() }

// priority is the rank that a Machine was given for deletion: lower goes first.
func priority(machine *v1alpha1.Machine) int {
	const normal = 3
	if value, err := strconv.Atoi(machine.Annotations[v1alpha1.AnnotationKeyMachinePriority]); err == nil {
		return value
	}
	return normal
}

// selects reports whether the selector matches the labels. No selector matches nothing.
func selects(selector *metav1.LabelSelector, set map[string]string) bool {
	parsed, err := metav1.LabelSelectorAsSelector(selector)
	return err == nil && parsed.Matches(labels.Set(set))
}
