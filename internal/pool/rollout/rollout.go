package rollout

import (
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/counts"
	"github.com/millwright-dev/millwright/internal/pool/inplaceupdate"
	"github.com/millwright-dev/millwright/internal/pool/reserve"
	"github.com/millwright-dev/millwright/internal/pool/revision"
)

// Rollout is what follows from the facts about a deployment: the progress of its rollout, and the limits on it.
// It is computed once and is read-only.
type Rollout struct {
	Facts

	// Desired is the number of Machines that the deployment should have, including its reserve.
	Desired int32
	// WasComplete reports whether the rollout of the current set was complete before. If so, the pass scales the
	// deployment or replaces a Machine.
	WasComplete bool
	// Unsupported reports whether Machines need an in-place update that is not possible. Because the strategy is
	// not to replace them, they stay as they are unless their set is being deleted.
	Unsupported bool
	// RolledOut reports whether all Machines belong to the current set and are available.
	RolledOut bool
	// MarksNodes reports whether a rolling or in-place rollout is in progress, during which nodes are marked.
	MarksNodes bool
	// UnmarksCurrent reports whether the current set was an old one, so that its nodes have taints to remove.
	UnmarksCurrent bool
	// Shown reports whether the cache shows all Machines that the sets report. Only an in-place update needs
	// this. A Machine that appears in the cache does not trigger a pass.
	Shown bool
	// Moving reports whether an in-place update moved Machines between sets, and the sets' replicas or statuses
	// do not show it yet. Until then, the sets' numbers do not show whether the update is complete.
	Moving bool
	// NeedsNodes reports whether an in-place update needs the nodes even if no rollout is in progress: moved
	// Machines are not settled yet, or users selected nodes.
	NeedsNodes bool

	// rolling reports whether Machines are replaced a few at a time, which is the default. inPlace reports
	// whether nodes are updated and their Machines stay.
	rolling, inPlace bool
	// surge and unavailable are the limits of a rollout, in Machines.
	surge, unavailable int32
	// minAvailable is how many Machines must be available, not counting failed Machines that are preserved. It
	// may be negative.
	minAvailable int64
	// sets are all sets, the current one last. used are the sets that should have Machines.
	sets, used []*v1alpha1.MachineSet
	// settled reports whether all sets are settled, so that all Machines are counted.
	settled bool
	// resized reports whether the deployment was scaled after its sets were, according to their annotations.
	resized bool
	// begun reports whether the rollout of the current set has begun.
	begun bool
	// suspended reports whether no Machines may be replaced now.
	suspended bool
	// replaced reports whether old sets have only retained Machines, or the rollout was complete before.
	replaced bool
	// limit is how many replicas the sets may have together. excess is how many they have above the limit, and
	// lacking how many below it.
	limit, excess, lacking int32
	// creatable is how many Machines may be created now. It is 0 until all sets are settled.
	creatable int32
	// postponed reports whether a suspended deployment was scaled up and cannot create some of its new Machines
	// until others are deleted. Until then, a set in use keeps the annotation of the former size as a record.
	postponed bool
	// heldBack are sets that must not be scaled down because a named Machine is not marked yet. They do not get
	// the time of the scaling either: if the mark was written but not confirmed, the set would delete the
	// Machine and replace it, because its replicas were not lowered.
	heldBack []*v1alpha1.MachineSet
	// nodeOf has the known nodes by the names of their Machines.
	nodeOf map[string]*corev1.Node
}

// New computes a Rollout.
func New(f Facts) *Rollout {
	r := &Rollout{Facts: f, Desired: reserve.Desired(f.Deployment), sets: f.All()}
	r.used = slices.DeleteFunc(slices.Clone(r.sets), func(set *v1alpha1.MachineSet) bool { return counts.Desired(set) == 0 })
	r.settled = !slices.ContainsFunc(r.sets, func(set *v1alpha1.MachineSet) bool { return !counts.Settled(set) })
	r.begun = f.Current != nil && counts.Desired(f.Current) > 0
	r.resized = slices.ContainsFunc(r.used, func(set *v1alpha1.MachineSet) bool { return !r.sizedFor(set, true) })
	r.strategy()
	r.progress()
	r.bounds()
	r.nodes()
	for _, op := range planMarks(r) {
		r.heldBack = append(r.heldBack, op.Set)
	}
	return r
}

// WithNodes returns a copy of the rollout with nodes that were read later. Nodes are nil if their cluster does
// not respond.
func (r *Rollout) WithNodes(nodes *Nodes) *Rollout {
	next := *r
	next.Nodes, next.TargetAway = nodes, nodes == nil
	next.nodes()
	return &next
}

// strategy computes how Machines are replaced, and within which limits.
func (r *Rollout) strategy() {
	strategy := r.Deployment.Spec.Strategy.Type
	r.rolling = strategy == "" || strategy == v1alpha1.RollingUpdateMachineDeploymentStrategyType
	r.inPlace = updatesInPlace(r.Deployment) && r.Machines != nil
	r.surge, r.unavailable = Bounds(r.Deployment)
	if updatesInPlace(r.Deployment) && !r.inPlace {
		r.surge = 0
	}
	r.minAvailable = int64(r.Desired-r.unavailable) - counts.Total(r.sets, counts.PreservedFailed)
}

func updatesInPlace(deployment *v1alpha1.MachineDeployment) bool {
	return deployment.Spec.Strategy.Type == v1alpha1.InPlaceUpdateMachineDeploymentStrategyType
}

// progress computes how far the rollout is.
func (r *Rollout) progress() {
	occupied := func(set *v1alpha1.MachineSet) bool { return r.occupied(set) }
	stays := func(set *v1alpha1.MachineSet) bool { return set.DeletionTimestamp.IsZero() && r.occupied(set) }
	r.WasComplete = r.wasComplete()
	r.replaced = r.WasComplete || !slices.ContainsFunc(r.Old, occupied)
	r.Unsupported = updatesInPlace(r.Deployment) && !r.inPlace && !r.WasComplete && slices.ContainsFunc(r.Old, stays)
	r.suspended = r.Deployment.Spec.Paused || r.Unsupported || r.LiveUpdate.Holds()
	r.RolledOut = r.LiveUpdate.Left() == 0 && r.replaced && r.currentIsComplete()
	r.MarksNodes = (r.rolling || r.inPlace) && !r.Deployment.Spec.Paused && !r.LiveUpdate.Holds() && !r.replaced
	r.UnmarksCurrent = r.Current != nil && r.Current.Annotations[v1alpha1.AnnotationKeyPreferNoSchedule] != ""
	r.moves()
}

// currentIsComplete reports whether the current set has all desired Machines, and all of them are available.
func (r *Rollout) currentIsComplete() bool {
	return r.Current != nil && counts.Settled(r.Current) &&
		counts.Desired(r.Current) == r.Desired && r.Counted(r.Current) == r.Desired && counts.Available(r.Current) == r.Desired
}

// wasComplete reports whether the deployment's status reports the rollout of the current set as complete. The
// deployment's revision identifies the set that the status was about, because it is written after a status that
// begins another rollout. If users deleted sets, the current one may have a lower revision.
func (r *Rollout) wasComplete() bool {
	status := r.Deployment.Status
	complete := func(c v1alpha1.MachineDeploymentCondition) bool {
		return c.Type == v1alpha1.MachineDeploymentProgressing && c.Reason == v1alpha1.DeploymentReasonComplete
	}
	if r.Current == nil || !slices.ContainsFunc(status.Conditions, complete) || counts.Total(r.Old, counts.Desired) > 0 || r.LiveUpdate.Left() > 0 {
		return false
	}
	set, recorded := revision.Number(r.Current), revision.Number(r.Deployment)
	return set == recorded || set < recorded && status.ObservedGeneration == r.Deployment.Generation
}

// moves determines which Machines an in-place update moved that the sets do not report yet.
func (r *Rollout) moves() {
	hidden := func(set *v1alpha1.MachineSet) bool { return int(set.Status.Replicas) > len(r.Machines[set.Name]) }
	concerned := func(set *v1alpha1.MachineSet) bool {
		return slices.ContainsFunc(r.Machines[set.Name], inplaceupdate.Concerned)
	}
	r.Shown = !r.inPlace || !slices.ContainsFunc(r.sets, hidden)
	r.Moving = r.inPlace && (!r.Shown || slices.ContainsFunc(r.Old, func(set *v1alpha1.MachineSet) bool { return r.moved(set) > 0 }))
	r.NeedsNodes = slices.ContainsFunc(r.sets, concerned)
}

// bounds computes how many Machines may exist. There is no surge if no Machines are desired, or if the rollout
// was suspended before it began.
func (r *Rollout) bounds() {
	r.limit = r.Desired + r.surge
	if r.Desired == 0 || r.suspended && !r.begun {
		r.limit = r.Desired
	}
	desired := counts.Total(r.sets, counts.Desired)
	r.excess, r.lacking = counts.Clamp(desired-int64(r.limit)), counts.Clamp(int64(r.limit)-desired)
	if r.settled {
		r.creatable = counts.Clamp(int64(r.Desired+r.surge) - counts.Total(r.sets, r.Counted))
	}
	r.postponed = r.suspended && r.resized && r.lacking > r.creatable
}

// nodes indexes the nodes of an in-place update.
func (r *Rollout) nodes() {
	if !r.inPlace || r.Nodes == nil {
		return
	}
	r.nodeOf = map[string]*corev1.Node{}
	for _, n := range slices.Concat(r.Nodes.OfOld, r.Nodes.OfCurrent) {
		r.nodeOf[n.Machine.Name] = n.Node
	}
}

// sizedFor reports whether a set was last scaled for the deployment's current size, according to its
// annotation. If the set has no annotation, it returns unknown.
func (r *Rollout) sizedFor(set *v1alpha1.MachineSet, unknown bool) bool {
	desired := set.Annotations[v1alpha1.AnnotationKeyDesiredReplicas]
	return desired == strconv.Itoa(int(r.Desired)) || unknown && desired == ""
}

// occupied reports whether a set has Machines, or may have some that it did not report yet.
func (r *Rollout) occupied(set *v1alpha1.MachineSet) bool {
	return !counts.Settled(set) || r.Counted(set) > 0 || r.moved(set) > 0
}

// reduced reports whether a set has too few replicas although the deployment was not scaled after the set was.
// In that case a rollout took Machines from it. They may still exist, so the limits of a rollout apply.
func (r *Rollout) reduced(set *v1alpha1.MachineSet) bool {
	return (r.rolling || r.inPlace) && counts.Desired(set) < r.Desired && r.sizedFor(set, false)
}

// sizedTogether reports whether all sets have their shares of the deployment's size.
func (r *Rollout) sizedTogether() bool {
	together := (r.rolling || r.inPlace) && r.Current != nil && !r.replaced || r.suspended && r.resized
	return together && r.settled && !r.postponed
}
