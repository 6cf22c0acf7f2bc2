// Package scale decides what a MachineSet does next.
//
// It turns facts into operations, without a client, a clock or a logger.
package scale

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/millwright-dev/millwright/api/machine/legacy"
	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/noderef"
	"github.com/millwright-dev/millwright/internal/lifecycle/preservation"
	"github.com/millwright-dev/millwright/internal/pool/counts"
	"github.com/millwright-dev/millwright/internal/pool/deletion"
	"github.com/millwright-dev/millwright/internal/pool/reserve"
	"github.com/millwright-dev/millwright/internal/reconcile/cascade/orphaning"
)

// Facts are the input of a plan. They come from the cache and are read-only.
type Facts struct {
	Set *v1alpha1.MachineSet
	// Owned are the Machines that the set controls.
	Owned []*v1alpha1.Machine
	// Unowned are Machines without a controller that the selector matches.
	Unowned []*v1alpha1.Machine
	// Current reports whether the cache shows all that was written, so that Machines can be counted.
	Current bool
	// Parent is the deployment of the set; nil if it has none.
	Parent *v1alpha1.MachineDeployment
	// Overshoot is when the set is frozen; nil is never.
	Overshoot *Overshoot
	// EnforceMinReady reports whether spec.minReadySeconds counts.
	EnforceMinReady bool
	// NotBefore is when the set may create Machines again after a back-off.
	NotBefore time.Time
	// Reserve are the owned Machines that are in excess of what the set has for pods; nil if there are none.
	Reserve reserve.Members
	// Outdated are owned Machines that differ from the template in what they take over from it.
	Outdated []Outdated
	// Orphaned reports whether the set is deleted without its Machines.
	Orphaned bool
	// PreservationsCurrent reports whether the cache shows all Machines that the set preserves by itself.
	PreservationsCurrent bool
	// spared has the UIDs of Machines that this pass preserves.
	spared map[types.UID]bool
	// Overlaps are the sorted names of other sets that select the same Machines.
	Overlaps []string
	// Now is when the facts were gathered.
	Now time.Time
}

// Deleted reports whether a set that is being deleted has no Machines left.
func (f Facts) Deleted() bool {
	return !f.Set.DeletionTimestamp.IsZero() && !orphaning.Pending(f.Set) && len(f.Owned) == 0 && f.Current
}

// AvailableIn returns the time after which a usable Machine counts as available; 0 if it does
// already. The time runs from when its Node turned ready. Without a Node, or if the Node's clock is
// ahead, it runs from when the Machine's phase changed, or from now if that is in the future.
func AvailableIn(machine *v1alpha1.Machine, f Facts) time.Duration {
	if !f.EnforceMinReady {
		return 0
	}
	since := machine.Status.CurrentStatus.LastUpdateTime
	if ready := noderef.Condition(machine.Status.Conditions, corev1.NodeReady); ready != nil && (since.IsZero() || ready.LastTransitionTime.Before(&since)) {
		since = ready.LastTransitionTime
	}
	wanted := time.Duration(f.Set.Spec.MinReadySeconds) * time.Second
	return min(wanted, max(0, since.Add(wanted).Sub(f.Now)))
}

// RequeueAfter returns the time after which something changes without an event: a back-off ends, a
// Machine becomes available, a preservation expires. 0 is never.
func RequeueAfter(f Facts, notBefore time.Time) time.Duration {
	soonest := max(0, notBefore.Sub(f.Now))
	consider := func(after time.Duration) {
		if after > 0 && (soonest == 0 || after < soonest) {
			soonest = after
		}
	}
	for _, machine := range f.Owned {
		if counts.Active(machine) && counts.Usable(machine) {
			consider(AvailableIn(machine, f))
		}
		if expiry := machine.Status.CurrentStatus.PreserveExpiryTime; expiry != nil {
			consider(expiry.Sub(f.Now))
		}
	}
	return soonest
}

// Selector parses a selector. A missing or invalid one matches nothing.
func Selector(selector *metav1.LabelSelector) labels.Selector {
	parsed, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil {
		return labels.Nothing()
	}
	return parsed
}

// SelectsAll reports whether a selector matches everything.
func SelectsAll(selector *metav1.LabelSelector) bool {
	return selector != nil && len(selector.MatchLabels)+len(selector.MatchExpressions) == 0
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

// Overlap reports whether the selector of one of two sets matches the Machines that the other
// creates. Sets of one deployment never overlap.
func Overlap(a, b *v1alpha1.MachineSet) bool {
	owner := ControllerOf(a)
	return a.UID != b.UID && CanOverlap(a) && CanOverlap(b) && (owner == "" || owner != ControllerOf(b)) &&
		(Matches(a.Spec.Selector, b.Spec.Template.Labels) || Matches(b.Spec.Selector, a.Spec.Template.Labels))
}

// CanOverlap reports whether a set creates Machines. A set that is being deleted does not, nor does one
// whose selector is missing or matches everything.
func CanOverlap(set *v1alpha1.MachineSet) bool {
	return set.DeletionTimestamp.IsZero() && set.Spec.Selector != nil && !SelectsAll(set.Spec.Selector)
}

// Matches reports whether a selector matches labels. It parses only selectors with expressions.
func Matches(selector *metav1.LabelSelector, created map[string]string) bool {
	return selector != nil && Contains(created, selector.MatchLabels) &&
		(len(selector.MatchExpressions) == 0 || Selector(selector).Matches(labels.Set(created)))
}

// ControllerOf returns the UID of an object's controller; empty if it has none.
func ControllerOf(object metav1.Object) types.UID {
	return ptr.Deref(metav1.GetControllerOfNoCopy(object), metav1.OwnerReference{}).UID
}

// Outdated is a Machine that has yet to take over a change of the template.
type Outdated struct {
	Machine *v1alpha1.Machine
	// Differences names what differs.
	Differences []string
	// Mark is how its node is to be kept free.
	Mark reserve.Mark
}

// Members returns the Machines that are to be the reserve of a set, of those that it controls. A preserved
// one does not become part of it: its pods are wanted there.
func Members(set *v1alpha1.MachineSet, owned []*v1alpha1.Machine, now time.Time) reserve.Members {
	return reserve.Of(set, owned, func(machine *v1alpha1.Machine) bool {
		return !preservation.Active(machine, now) && !deletion.Named(machine, set)
	})
}

// Differences names what a Machine, or another template, has yet to take over from a template: the
// node template, the configuration and the kind of the class change without a new Machine.
func Differences(template, spec *v1alpha1.MachineSpec) []string {
	var differing []string
	if !equality.Semantic.DeepEqual(&template.NodeTemplateSpec, &spec.NodeTemplateSpec) {
		differing = append(differing, "node template")
	}
	if !sameConfiguration(template, spec) {
		differing = append(differing, "configuration")
	}
	if classKind(template, spec) != spec.Class.Kind {
		differing = append(differing, "kind of class")
	}
	return differing
}

// TakeOver copies the differences from a template to the spec of a Machine, or to another template.
func TakeOver(template, spec *v1alpha1.MachineSpec) {
	if !equality.Semantic.DeepEqual(&template.NodeTemplateSpec, &spec.NodeTemplateSpec) {
		template.NodeTemplateSpec.DeepCopyInto(&spec.NodeTemplateSpec)
	}
	if !sameConfiguration(template, spec) {
		spec.MachineConfiguration = template.MachineConfiguration.DeepCopy()
	}
	spec.Class.Kind = classKind(template, spec)
}

// classKind returns the kind of class that a Machine, or another template, has once it has taken over a
// template. What refers to a MachineClass never refers to a legacy kind again: such a template is mostly an
// old one of the cache, from before its migration.
func classKind(template, spec *v1alpha1.MachineSpec) string {
	kind := template.Class.Kind
	if kind != spec.Class.Kind && spec.Class.Kind == v1alpha1.MachineClassKind && slices.Contains(legacy.Kinds(), kind) {
		return v1alpha1.MachineClassKind
	}
	return kind
}

// sameConfiguration compares configurations. A missing one equals an empty one.
func sameConfiguration(a, b *v1alpha1.MachineSpec) bool {
	none := v1alpha1.MachineConfiguration{}
	return equality.Semantic.DeepEqual(ptr.Deref(a.MachineConfiguration, none), ptr.Deref(b.MachineConfiguration, none))
}
