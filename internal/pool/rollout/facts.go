// Package rollout decides what brings a MachineDeployment closer to its goal.
//
// It is pure: from Facts, Plan makes Operations that each carry their reason. It reads no clock and
// no API.
package rollout

import (
	"fmt"
	"math"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/classchange"
	"github.com/millwright-dev/millwright/internal/pool/inplace"
	"github.com/millwright-dev/millwright/internal/pool/liveupdate"
	"github.com/millwright-dev/millwright/internal/pool/reserve"
	"github.com/millwright-dev/millwright/internal/pool/revision"
	"github.com/millwright-dev/millwright/internal/pool/scale"
	"github.com/millwright-dev/millwright/internal/reconcile/validation"
)

// Facts are all that a plan and a status are made from. They are read-only.
type Facts struct {
	// Deployment that is planned for.
	Deployment *v1alpha1.MachineDeployment
	// Current is the set of the deployment's template; nil if there is none yet.
	Current *v1alpha1.MachineSet
	// Old are the sets of other templates and those being deleted, the oldest first.
	Old []*v1alpha1.MachineSet
	// Orphans are sets without a controller that the selector matches.
	Orphans []*v1alpha1.MachineSet
	// Released are sets with Machines that were created for the deployment, have no controller, and
	// do not match its selector any more.
	Released []*v1alpha1.MachineSet
	// Overlaps are the names of other deployments that select the same Machines.
	Overlaps []string
	// Named are the Machines that an autoscaler named for deletion.
	Named []Named
	// Retained is how many preserved Machines a set keeps beyond its replicas, by its name.
	Retained map[string]int32
	// Nodes of the Machines; nil if they were not read. TargetAway reports whether that is because
	// their cluster does not answer.
	Nodes      *Nodes
	TargetAway bool
	// Class is the change of the class of Machines that stay; nil if the template is rolled out as ever.
	Class *classchange.Change
	// Now is the time of the pass.
	Now time.Time

	// rolling reports whether Machines are replaced a few at a time, which is the default.
	rolling bool
	// inPlace reports whether nodes are updated and their Machines stay. Then machines has those of all
	// sets, by the names of the sets.
	inPlace  bool
	machines map[string][]*v1alpha1.Machine
	// surge and unavailable bound an update, in Machines.
	surge, unavailable int32
	// heldBack are sets that must not be scaled down, since a named Machine is not marked yet. Nor are
	// they told when the deployment was scaled: if the mark was made but not confirmed, the set would
	// delete the Machine, and replace it as it was not scaled.
	heldBack []*v1alpha1.MachineSet
	// excess is how many replicas of each set are a reserve; the key nil is a new set.
	excess map[*v1alpha1.MachineSet]int32
}

// Nodes are the nodes of a deployment's Machines.
type Nodes struct {
	// OfOld are the nodes of old sets, OfCurrent those of the current one.
	OfOld, OfCurrent []Node
	// Protect reports whether a rollout keeps autoscalers from removing nodes.
	Protect bool
	// Stale reports whether nodes are left out, since the cache does not show the last write to them.
	Stale bool
	// Behind reports whether a Machine says that its node was updated, which the cache does not show yet.
	Behind bool
	// UnansweredSince is since when a node has been a candidate for an update in place without a word of
	// the machine controller; zero if there is none.
	UnansweredSince time.Time
}

// Node is a Machine and its Node.
type Node struct {
	Machine *v1alpha1.Machine
	Node    *corev1.Node
}

// NewFacts sorts the sets that a deployment controls. The other facts are the caller's to fill in.
func NewFacts(deployment *v1alpha1.MachineDeployment, sets []*v1alpha1.MachineSet, now time.Time) Facts {
	strategy := deployment.Spec.Strategy.Type
	f := Facts{Deployment: deployment, Now: now, rolling: strategy == "" || strategy == v1alpha1.RollingUpdateMachineDeploymentStrategyType}
	f.surge, f.unavailable = Bounds(deployment)
	if strategy == v1alpha1.InPlaceUpdateMachineDeploymentStrategyType {
		f.surge = 0 // see UpdateInPlace
	}
	sets = slices.Clone(sets)
	slices.SortFunc(sets, revision.Older)
	f.Current = revision.Current(sets, &deployment.Spec.Template)
	f.Old = slices.DeleteFunc(sets, func(set *v1alpha1.MachineSet) bool { return set == f.Current })
	return f
}

// All returns the sets, the current one last. The slice is the caller's.
func (f Facts) All() []*v1alpha1.MachineSet {
	all := slices.Clone(f.Old)
	if f.Current != nil {
		all = append(all, f.Current)
	}
	return all
}

// Bounds returns how many Machines an update may have beyond the replicas, and how many of the
// replicas may be unavailable. Both default to 1, and if both are 0, one may be unavailable. If users
// select the nodes that are updated in place, there is no surge. The strategy Recreate has no bounds.
func Bounds(deployment *v1alpha1.MachineDeployment) (surge, unavailable int32) {
	config := v1alpha1.UpdateConfiguration{}
	switch strategy := deployment.Spec.Strategy; strategy.Type {
	case v1alpha1.RecreateMachineDeploymentStrategyType:
		return 0, 0
	case v1alpha1.InPlaceUpdateMachineDeploymentStrategyType:
		if strategy.InPlaceUpdate != nil {
			config = strategy.InPlaceUpdate.UpdateConfiguration
		}
	case v1alpha1.RollingUpdateMachineDeploymentStrategyType, "":
		if strategy.RollingUpdate != nil {
			config = strategy.RollingUpdate.UpdateConfiguration
		}
	}
	one, total := intstr.FromInt32(1), int(reserve.Wanted(deployment))
	// Both were validated, so neither can fail.
	up, _ := intstr.GetScaledValueFromIntOrPercent(intstr.ValueOrDefault(config.MaxSurge, one), total, true)
	down, _ := intstr.GetScaledValueFromIntOrPercent(intstr.ValueOrDefault(config.MaxUnavailable, one), total, false)
	if up == 0 && down == 0 {
		down = 1
	}
	if inplace.Manual(deployment) {
		up = 0
	}
	// Their sum with the replicas is a number of replicas, too.
	return int32(min(up, math.MaxInt32-total)), int32(min(down, total))
}

// Selects returns a function that reports whether a deployment's selector matches a set: its own labels
// and those of its Machines.
func Selects(deployment *v1alpha1.MachineDeployment) func(*v1alpha1.MachineSet) bool {
	selector := scale.Selector(deployment.Spec.Selector)
	return func(set *v1alpha1.MachineSet) bool {
		return selector.Matches(labels.Set(set.Labels)) && selector.Matches(labels.Set(set.Spec.Template.Labels))
	}
}

// SelectsAll reports whether the deployment's selector is empty, so that it matches everything.
func SelectsAll(deployment *v1alpha1.MachineDeployment) bool {
	return scale.SelectsAll(deployment.Spec.Selector)
}

// Overlap reports whether the selector of one of two deployments matches the Machines of the other.
// A deployment that is being deleted, or that selects everything, creates none.
func Overlap(a, b *v1alpha1.MachineDeployment) bool {
	creates := func(d *v1alpha1.MachineDeployment) bool { return d.DeletionTimestamp.IsZero() && !SelectsAll(d) }
	return a.UID != b.UID && creates(a) && creates(b) &&
		(scale.Matches(a.Spec.Selector, b.Spec.Template.Labels) || scale.Matches(b.Spec.Selector, a.Spec.Template.Labels))
}

// Invalid returns why a deployment cannot be reconciled, with the field; empty if it can.
func Invalid(deployment *v1alpha1.MachineDeployment, sets []*v1alpha1.MachineSet) string {
	if errs := validation.MachineDeployment(deployment); len(errs) > 0 {
		return errs.ToAggregate().Error()
	}
	if _, wrong := liveupdate.Parse(deployment.Annotations); wrong != "" {
		return "metadata.annotations: " + wrong
	}
	requirements, _ := scale.Selector(deployment.Spec.Selector).Requirements()
	namesHash := slices.ContainsFunc(requirements, func(r labels.Requirement) bool { return r.Key() == v1alpha1.DefaultMachineDeploymentUniqueLabelKey })
	if !namesHash || slices.ContainsFunc(sets, func(set *v1alpha1.MachineSet) bool {
		return set.DeletionTimestamp.IsZero() && Selects(deployment)(set) && revision.Same(&set.Spec.Template, &deployment.Spec.Template)
	}) {
		return ""
	}
	return Unselected(deployment, NewSet(Facts{Deployment: deployment}, 0)) // which adds the hash
}

// Unselected returns why a deployment does not select a new set; empty if it does. Such a set would be
// released as soon as it exists, and another one created, without end.
func Unselected(deployment *v1alpha1.MachineDeployment, set *v1alpha1.MachineSet) string {
	if Selects(deployment)(set) {
		return ""
	}
	const key = v1alpha1.DefaultMachineDeploymentUniqueLabelKey
	return fmt.Sprintf("spec.selector: %q does not match the machine set that would be made, which has the label %s=%s. Leave that label to the sets.", scale.Selector(deployment.Spec.Selector), key, set.Labels[key])
}

// Mutated names the fields in which a set that was created differs from the deployment's template.
func Mutated(deployment *v1alpha1.MachineDeployment, created *v1alpha1.MachineSet) []string {
	want, is := revision.Essence(&deployment.Spec.Template), revision.Essence(&created.Spec.Template)
	var fields []string
	compare := func(field string, same bool) {
		if !same {
			fields = append(fields, field)
		}
	}
	compare("metadata.labels", scale.Matches(deployment.Spec.Selector, created.Labels))
	compare("spec.template.metadata.labels", equality.Semantic.DeepEqual(want.Labels, is.Labels))
	compare("spec.template.metadata.annotations", equality.Semantic.DeepEqual(want.Annotations, is.Annotations))
	compare("spec.template.spec", equality.Semantic.DeepEqual(want.Spec, is.Spec))
	if len(fields) == 0 {
		compare("spec.template.metadata", equality.Semantic.DeepEqual(want, is) && Selects(deployment)(created))
	}
	return fields
}
