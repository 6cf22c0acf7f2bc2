// Package scale decides which Machines a MachineSet creates, changes and deletes next.
//
// It computes operations from facts, without a client, a clock or a logger.
package scale

import (
	"cmp"
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
	"github.com/millwright-dev/millwright/internal/pool/restore"
	"github.com/millwright-dev/millwright/internal/reconcile/cascade/orphaning"
)

// Facts are the input of a plan. They come from the cache and are read-only.
type Facts struct {
	Set *v1alpha1.MachineSet
	// Owned are the Machines that the set controls.
	Owned []*v1alpha1.Machine
	// Unowned are Machines without a controller that the selector matches.
	Unowned []*v1alpha1.Machine
	// Current reports whether the cache shows everything that was written, so that Machines can be counted.
	Current bool
	// Parent is the deployment of the set, or nil if it has none.
	Parent *v1alpha1.MachineDeployment
	// Overshoot configures when the set is frozen. If nil, it is never frozen.
	Overshoot *Overshoot
	// EnforceMinReady reports whether spec.minReadySeconds applies.
	EnforceMinReady bool
	// NotBefore is the time when the set may create Machines again after a back-off.
	NotBefore time.Time
	// Reserve are the owned Machines that are excess Machines. It is nil if there are none.
	Reserve reserve.Members
	// Outdated are owned Machines that have not taken over a change of the template.
	Outdated []Outdated
	// Orphaned reports whether the set is being deleted without its Machines.
	Orphaned bool
	// PreservationsCurrent reports whether the cache shows all Machines that the set preserves automatically.
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

// AvailableIn returns the time after which a usable Machine counts as available, or 0 if it already does. The
// time starts when its Node became ready. Without a Node, or if the Node's clock is ahead, it starts when the
// Machine's phase changed, or now if that is in the future.
func AvailableIn(machine *v1alpha1.Machine, f Facts) time.Duration {
	if !f.EnforceMinReady {
		return 0
	}
	since := machine.Status.CurrentStatus.LastUpdateTime
	if ready := noderef.Condition(machine.Status.Conditions, corev1.NodeReady); ready != nil && (since.IsZero() || ready.LastTransitionTime.Before(&since)) {
		since = ready.LastTransitionTime
	}
	minReady := time.Duration(f.Set.Spec.MinReadySeconds) * time.Second
	return min(minReady, max(0, since.Add(minReady).Sub(f.Now)))
}

// RequeueAfter returns the time until something changes without an event: a back-off expires, a Machine becomes
// available, a preservation expires, or the set no longer waits for restored Machines. It returns 0 if there is no
// such time.
func RequeueAfter(f Facts, notBefore time.Time) time.Duration {
	soonest := max(0, notBefore.Sub(f.Now))
	consider := func(after time.Duration) {
		if after > 0 {
			soonest = min(after, cmp.Or(soonest, after))
		}
	}
	consider(restore.Until(f.Set).Sub(f.Now))
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

// Selector parses a selector. A missing or invalid selector matches nothing.
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

// Contains reports whether all includes the labels of some.
func Contains(all, some map[string]string) bool {
	for key, value := range some {
		if is, ok := all[key]; !ok || is != value {
			return false
		}
	}
	return true
}

// Overlap reports whether the selector of one of two sets matches the Machines that the other creates. Sets of
// the same deployment never overlap.
func Overlap(a, b *v1alpha1.MachineSet) bool {
	owner := ControllerOf(a)
	return a.UID != b.UID && CanOverlap(a) && CanOverlap(b) && (owner == "" || owner != ControllerOf(b)) &&
		(Matches(a.Spec.Selector, b.Spec.Template.Labels) || Matches(b.Spec.Selector, a.Spec.Template.Labels))
}

// CanOverlap reports whether a set can create Machines. A set that is being deleted cannot, and neither can a
// set whose selector is missing or matches everything.
func CanOverlap(set *v1alpha1.MachineSet) bool {
	return set.DeletionTimestamp.IsZero() && set.Spec.Selector != nil && !SelectsAll(set.Spec.Selector)
}

// Matches reports whether a selector matches labels. It is cheap for selectors without expressions.
func Matches(selector *metav1.LabelSelector, created map[string]string) bool {
	return selector != nil && Contains(created, selector.MatchLabels) &&
		(len(selector.MatchExpressions) == 0 || Selector(selector).Matches(labels.Set(created)))
}

// ControllerOf returns the UID of an object's controller, or an empty string if it has none.
func ControllerOf(object metav1.Object) types.UID {
	return ptr.Deref(metav1.GetControllerOfNoCopy(object), metav1.OwnerReference{}).UID
}

// Outdated is a Machine that has not taken over a change of the template.
type Outdated struct {
	Machine *v1alpha1.Machine
	// Differences are the names of the parts that differ.
	Differences []string
	// Mark is how its node should be kept free of Pods.
	Mark reserve.Mark
}

// Members returns the Machines that should be the reserve of a set, of the Machines that it controls. A
// preserved Machine does not become part of it, because its Pods must keep running.
func Members(set *v1alpha1.MachineSet, owned []*v1alpha1.Machine, now time.Time) reserve.Members {
	return reserve.Of(set, owned, func(machine *v1alpha1.Machine) bool {
		return !preservation.Active(machine, now) && !deletion.Named(machine, set)
	})
}

// Differences returns the parts of a template that a Machine, or another template, has not taken over. The node
// template, the configuration and the kind of the class change without a new Machine.
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

// TakeOver copies these parts from a template to the spec of a Machine or to another template.
func TakeOver(template, spec *v1alpha1.MachineSpec) {
	if !equality.Semantic.DeepEqual(&template.NodeTemplateSpec, &spec.NodeTemplateSpec) {
		template.NodeTemplateSpec.DeepCopyInto(&spec.NodeTemplateSpec)
	}
	if !sameConfiguration(template, spec) {
		spec.MachineConfiguration = template.MachineConfiguration.DeepCopy()
	}
	spec.Class.Kind = classKind(template, spec)
}

// classKind returns the kind of class that a Machine, or another template, has after it takes over a template.
// A reference to a MachineClass never changes back to a legacy kind: such a template is usually an old version
// from the cache, from before its migration.
func classKind(template, spec *v1alpha1.MachineSpec) string {
	kind := template.Class.Kind
	if spec.Class.Kind == v1alpha1.MachineClassKind && slices.Contains(legacy.Kinds(), kind) {
		return v1alpha1.MachineClassKind
	}
	return kind
}

// sameConfiguration reports whether configurations are equal. A missing configuration equals an empty one.
func sameConfiguration(a, b *v1alpha1.MachineSpec) bool {
	none := v1alpha1.MachineConfiguration{}
	return equality.Semantic.DeepEqual(ptr.Deref(a.MachineConfiguration, none), ptr.Deref(b.MachineConfiguration, none))
}
