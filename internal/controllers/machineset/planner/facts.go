// Package planner decides what a MachineSet does next.
//
// It turns facts into operations, without a client, a clock or a logger.
package planner

import (
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// Facts are what a plan is made from. They come from the cache, and nobody changes them.
type Facts struct {
	Set *v1alpha1.MachineSet
	// Owned are the Machines that the set controls.
	Owned []*v1alpha1.Machine
	// Unowned are Machines without a controller that the selector matches.
	Unowned []*v1alpha1.Machine
	// Current reports whether the cache shows all that was written. If not, the Machines cannot be
	// counted.
	Current bool
	// Parent is the deployment of the set; nil if it has none.
	Parent *v1alpha1.MachineDeployment
	// Overshoot says when the set is frozen; nil: never.
	Overshoot *Overshoot
	// EnforceMinReady reports whether spec.minReadySeconds counts.
	EnforceMinReady bool
	// NotBefore is when the set may create Machines again after many have failed.
	NotBefore time.Time
	// Outdated are owned Machines that have yet to take over a change of the template.
	Outdated []Outdated
	// Orphaned reports whether the set is deleted without its Machines. The garbage collector may
	// have finished with it.
	Orphaned bool
	// Overlaps are the names of other sets that select the same Machines, in order.
	Overlaps []string
	// Now is when the facts were gathered.
	Now time.Time
}

// Selected returns a function that reports whether the set's selector matches some labels. Without
// a valid selector nothing matches. Parsing the selector for each Machine would be most of a plan's
// cost.
func (f Facts) Selected() func(map[string]string) bool {
	parsed, err := metav1.LabelSelectorAsSelector(f.Set.Spec.Selector)
	return func(set map[string]string) bool { return err == nil && parsed.Matches(labels.Set(set)) }
}

// Deleted reports whether a set that is being deleted has no Machines left, so that its finalizer
// can go.
func (f Facts) Deleted() bool {
	return !f.Set.DeletionTimestamp.IsZero() && !orphaning(f.Set) && len(f.Owned) == 0 && f.Current
}

// Active reports whether a Machine counts, which it does unless it is being deleted. Its phase says
// nothing: after a restore from a backup a Machine may be Terminating though nobody deletes it.
func Active(machine *v1alpha1.Machine) bool { return machine.DeletionTimestamp.IsZero() }

// priority is the annotated priority of a Machine. Lower priorities are deleted first.
func priority(machine *v1alpha1.Machine) int {
	const normal = 3
	if value, err := strconv.Atoi(machine.Annotations[v1alpha1.AnnotationKeyMachinePriority]); err == nil {
		return value
	}
	return normal
}

// Selects reports whether a selector matches labels. A missing or invalid selector matches nothing.
func Selects(selector *metav1.LabelSelector, set map[string]string) bool {
	parsed, err := metav1.LabelSelectorAsSelector(selector)
	return err == nil && parsed.Matches(labels.Set(set))
}

// Contains reports whether all has the labels of some.
func Contains(all, some map[string]string) bool {
	for key, value := range some {
		if is, ok := all[key]; !ok || is != value {
			return false
		}
	}
	return true
}
