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

// Rollout is what follows from the facts about a deployment: how far its rollout is, and what bounds it. It is computed
// once, and read-only.
type Rollout struct {
	Facts

	// Desired is how many Machines the deployment is to have, with its reserve.
	Desired int32
	// WasComplete reports whether the rollout of the current set was complete before, so that now the
	// deployment is scaled or a Machine replaced.
	WasComplete bool
	// Unsupported reports whether Machines would have to be updated in place, and cannot. They stay as they
	// are, since the strategy is not to replace them, unless their set is being deleted.
	Unsupported bool
	// RolledOut reports whether all Machines are of the current set and available.
	RolledOut bool
	// MarksNodes reports whether a rollout is under way, rolling or in place, during which nodes are marked.
	MarksNodes bool
	// UnmarksCurrent reports whether the current set was an old one, whose nodes were tainted.
	UnmarksCurrent bool
	// Shown reports whether the cache shows all Machines that the sets report, as an in-place update needs; other
	// rollouts do not. A Machine that comes to be shown starts no pass.
	Shown bool
	// Moving reports whether Machines moved between sets by an in-place update, which the replicas of the sets
	// or their reports do not show yet. Then the numbers of the sets do not tell whether the update is over.
	Moving bool
	// NodesConcerned reports whether the nodes have to be read for an in-place update, even if no rollout is
	// under way: Machines were moved and are to be settled, or users selected nodes.
	NodesConcerned bool

	// rolling reports whether Machines are replaced a few at a time, which is the default; inPlace whether nodes are
	// updated and their Machines stay.
	rolling, inPlace bool
	// surge and unavailable bound a rollout, in Machines.
	surge, unavailable int32
	// least is how many Machines have to be available, without those that failed and are preserved. It may be negative.
	least int64
	// sets are all sets, the current one last; used are those of them that are to have Machines.
	sets, used []*v1alpha1.MachineSet
	// settled reports whether all sets are settled, so that all Machines are counted.
	settled bool
	// resized reports whether the deployment was scaled since its sets were, by their annotations.
	resized bool
	// begun reports whether the rollout of the current set has begun.
	begun bool
	// suspended reports whether no Machine is replaced now.
	suspended bool
	// replaced reports whether old sets have only retained Machines, or the rollout was complete before.
	replaced bool
	// limit is how many replicas the sets may have together; excess is how many more they have, lacking how many fewer.
	limit, excess, lacking int32
	// creatable is how many Machines may be created now; 0 until all sets are settled.
	creatable int32
	// postponed reports whether a suspended deployment was scaled up, and some of its new Machines wait
	// until others are gone. Until then a set in use keeps the annotation of the former size as a record.
	postponed bool
	// heldBack are sets that must not be scaled down, since a named Machine is not marked yet. Nor are
	// they told when the deployment was scaled: if the mark was made but not confirmed, the set would
	// delete the Machine, and replace it as it was not scaled.
	heldBack []*v1alpha1.MachineSet
	// nodeOf has the known nodes, by the names of their Machines.
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

// WithNodes returns a rollout with nodes that were read since; nil if their cluster does not respond.
func (r *Rollout) WithNodes(nodes *Nodes) *Rollout {
	next := *r
	next.Nodes, next.TargetAway = nodes, nodes == nil
	next.nodes()
	return &next
}

// strategy decides how Machines are replaced, and within which bounds.
func (r *Rollout) strategy() {
	strategy := r.Deployment.Spec.Strategy.Type
	r.rolling = strategy == "" || strategy == v1alpha1.RollingUpdateMachineDeploymentStrategyType
	r.inPlace = updatesInPlace(r.Deployment) && r.Machines != nil
	r.surge, r.unavailable = Bounds(r.Deployment)
	if updatesInPlace(r.Deployment) && !r.inPlace {
		r.surge = 0
	}
	r.least = int64(r.Desired-r.unavailable) - counts.Total(r.sets, counts.PreservedFailed)
}

func updatesInPlace(deployment *v1alpha1.MachineDeployment) bool {
	return deployment.Spec.Strategy.Type == v1alpha1.InPlaceUpdateMachineDeploymentStrategyType
}

// progress finds out how far the rollout is.
func (r *Rollout) progress() {
	occupied := func(set *v1alpha1.MachineSet) bool { return r.occupied(set) }
	stays := func(set *v1alpha1.MachineSet) bool { return set.DeletionTimestamp.IsZero() && r.occupied(set) }
	r.WasComplete = r.wasComplete()
	r.replaced = r.WasComplete || !slices.ContainsFunc(r.Old, occupied)
	r.Unsupported = updatesInPlace(r.Deployment) && !r.inPlace && !r.WasComplete && slices.ContainsFunc(r.Old, stays)
	r.suspended = r.Deployment.Spec.Paused || r.Unsupported || r.LiveUpdate.Holds()
	r.RolledOut = r.LiveUpdate.Left() == 0 && r.replaced && r.currentIsWhole()
	r.MarksNodes = (r.rolling || r.inPlace) && !r.Deployment.Spec.Paused && !r.LiveUpdate.Holds() && !r.replaced
	r.UnmarksCurrent = r.Current != nil && r.Current.Annotations[v1alpha1.AnnotationKeyPreferNoSchedule] != ""
	r.moves()
}

// currentIsWhole reports whether the current set has all desired Machines, and all of them are available.
func (r *Rollout) currentIsWhole() bool {
	return r.Current != nil && counts.Settled(r.Current) &&
		counts.Desired(r.Current) == r.Desired && r.Counted(r.Current) == r.Desired && counts.Available(r.Current) == r.Desired
}

// wasComplete reads the deployment's status. The deployment's revision tells which set that was
// about; it is written after a status that begins another rollout. After sets were deleted by hand,
// the current one may have a lower revision.
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

// moves finds out what an in-place update does that the sets do not report yet.
func (r *Rollout) moves() {
	hidden := func(set *v1alpha1.MachineSet) bool { return int(set.Status.Replicas) > len(r.Machines[set.Name]) }
	concerned := func(set *v1alpha1.MachineSet) bool {
		return slices.ContainsFunc(r.Machines[set.Name], inplaceupdate.Concerned)
	}
	r.Shown = !r.inPlace || !slices.ContainsFunc(r.sets, hidden)
	r.Moving = r.inPlace && (!r.Shown || slices.ContainsFunc(r.Old, func(set *v1alpha1.MachineSet) bool { return r.moved(set) > 0 }))
	r.NodesConcerned = slices.ContainsFunc(r.sets, concerned)
}

// bounds computes how many Machines there may be. There is no surge if no Machines are
// desired, or if the rollout is suspended before it has begun.
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

// sizedFor reports whether a set was last scaled for the size that the deployment has, by its annotation; without one,
// it is not known.
func (r *Rollout) sizedFor(set *v1alpha1.MachineSet, unknown bool) bool {
	desired := set.Annotations[v1alpha1.AnnotationKeyDesiredReplicas]
	return desired == strconv.Itoa(int(r.Desired)) || unknown && desired == ""
}

// occupied reports whether a set has Machines, or may have some that it did not report yet.
func (r *Rollout) occupied(set *v1alpha1.MachineSet) bool {
	return !counts.Settled(set) || r.Counted(set) > 0 || r.moved(set) > 0
}

// reduced reports whether a set has to grow although the deployment was not scaled since the set was.
// Then a rollout took Machines from it, which may still exist, so the bounds of a rollout apply.
func (r *Rollout) reduced(set *v1alpha1.MachineSet) bool {
	return (r.rolling || r.inPlace) && counts.Desired(set) < r.Desired && r.sizedFor(set, false)
}

// sizedTogether reports whether the sets have their shares of the deployment's size, all of them.
func (r *Rollout) sizedTogether() bool {
	together := (r.rolling || r.inPlace) && r.Current != nil && !r.replaced || r.suspended && r.resized
	return together && r.settled && !r.postponed
}
