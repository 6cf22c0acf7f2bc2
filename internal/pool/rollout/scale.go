package rollout

import (
	"cmp"
	"math"
	"slices"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/counts"
)

// share is the size of a set when several are scaled down together.
type share struct {
	set      *v1alpha1.MachineSet
	replicas int32
}

// available returns how many Machines of the set remain available. The set does not delete preserved ones.
func (s share) available() int32 {
	return max(0, min(counts.Available(s.set), s.replicas-counts.PreservedFailed(s.set)))
}

// planScaleDown takes Machines from all sets of a rollout whose deployment was scaled down. It first takes
// Machines named for deletion, then Machines from every set in proportion to its size. It keeps enough Machines
// available and takes unusable ones instead.
func planScaleDown(r *Rollout) []Operation {
	var shares []share
	for _, set := range r.used {
		shares = append(shares, share{set, counts.Desired(set)})
	}
	rest := takeNamed(r, shares, r.excess)
	if last := &shares[len(shares)-1]; last.set == r.Current && last.replicas > r.Desired {
		take := last.replicas - r.Desired // it must never have more
		last.replicas, rest = last.replicas-take, max(0, rest-take)
	}
	takeInProportion(r, shares, rest)
	keepAvailable(r, shares)
	var operations []Operation
	for _, s := range shares {
		if s.replicas < counts.Desired(s.set) {
			operations = append(operations, scaleTo(s.set, s.replicas, desired(r)+"; all machine sets are scaled down in proportion to their sizes"))
		}
	}
	return operations
}

// planScaleUp gives Machines to all sets in use, in proportion to their sizes, as far as the limits allow.
func planScaleUp(r *Rollout) []Operation {
	used := slices.Clone(r.used)
	slices.Reverse(used) // the newer first
	slices.SortStableFunc(used, func(a, b *v1alpha1.MachineSet) int { return cmp.Compare(counts.Desired(b), counts.Desired(a)) })
	rest, of := min(r.lacking, r.creatable), counts.Clamp(counts.Total(used, counts.Desired))
	size := of + rest
	var operations []Operation
	for _, set := range used {
		more := int32(math.Round(float64(rest) * float64(counts.Desired(set)) / float64(of)))
		rest, of = rest-more, of-counts.Desired(set)
		if more > 0 {
			op := scaleTo(set, counts.Desired(set)+more, desired(r)+"; all machine sets in use are scaled up in proportion to their sizes")
			op.size = size
			operations = append(operations, op)
		}
	}
	return operations
}

// takeNamed takes Machines named for deletion, and returns how many others remain to be taken.
func takeNamed(r *Rollout, shares []share, rest int32) int32 {
	for i := range shares {
		s := &shares[i]
		for _, n := range r.Named {
			if rest > 0 && s.replicas > 0 && n.exists() && metav1.IsControlledBy(n.Machine, s.set) {
				s.replicas, rest = s.replicas-1, rest-1
			}
		}
	}
	return rest
}

// takeInProportion takes Machines from every set in proportion to its size, the largest set first. It then
// takes the remaining ones in the same order.
func takeInProportion(r *Rollout, shares []share, rest int32) {
	bySize := make([]*share, len(shares))
	for i := range shares {
		bySize[i] = &shares[i] // the older first
	}
	slices.SortStableFunc(bySize, func(a, b *share) int { return cmp.Compare(counts.Desired(b.set), counts.Desired(a.set)) })
	for _, s := range bySize {
		take := min(rest, s.replicas, max(0, counts.Desired(s.set)-proportional(r, s.set)))
		s.replicas, rest = s.replicas-take, rest-take
	}
	for _, s := range bySize {
		take := min(rest, s.replicas)
		s.replicas, rest = s.replicas-take, rest-take
	}
}

// proportional returns the size of a set in the resized deployment, whose former size is in an annotation.
func proportional(r *Rollout, set *v1alpha1.MachineSet) int32 {
	of, err := strconv.ParseInt(set.Annotations[v1alpha1.AnnotationKeyMaxReplicas], 10, 32)
	if err != nil || of <= 0 || r.suspended && !r.begun { // in the last case there was a surge, and there is none now
		of = counts.Total(r.sets, counts.Desired)
	}
	size := math.Round(float64(counts.Desired(set)) * float64(r.limit) / float64(of))
	return int32(min(size, math.MaxInt32))
}

// keepAvailable gives back Machines that must remain available, to the current set first, and takes unusable
// ones instead.
func keepAvailable(r *Rollout, shares []share) {
	minAvailable := min(r.minAvailable, counts.Total(r.sets, counts.Available))
	var left, given int64
	for _, s := range shares {
		left += int64(s.available())
	}
	for i := len(shares) - 1; i >= 0 && left < minAvailable; i-- { // the current one comes last
		s := &shares[i]
		was, had, preserved := s.replicas, s.available(), counts.PreservedFailed(s.set)
		s.replicas = counts.Clamp(min(int64(max(s.replicas, preserved))+minAvailable-left, int64(max(s.replicas, preserved+counts.Available(s.set)))))
		left += int64(s.available() - had)
		given += int64(s.replicas - was)
	}
	for i := range shares {
		s := &shares[i]
		take := counts.Clamp(min(given, int64(s.replicas-counts.PreservedFailed(s.set)-s.available())))
		s.replicas, given = s.replicas-take, given-int64(take)
	}
}
