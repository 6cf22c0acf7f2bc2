package machinedeployment

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// inUse are the sets that shall have machines.
func inUse(f facts) []*v1alpha1.MachineSet {
	return slices.DeleteFunc(f.all(), func(set *v1alpha1.MachineSet) bool { return asked(set) == 0 })
}

// resized reports whether somebody scaled the deployment since its sets were scaled. It
// shows in the annotation of those in use; a set without one does not tell.
func resized(f facts) bool {
	wanted := strconv.Itoa(int(f.deployment.Spec.Replicas))
	return slices.ContainsFunc(inUse(f), func(set *v1alpha1.MachineSet) bool {
		desired := set.Annotations[v1alpha1.AnnotationKeyDesiredReplicas]
		return desired != "" && desired != wanted
	})
}

// begun reports whether the current set has a part in the machines.
func begun(f facts) bool { return f.current != nil && asked(f.current) > 0 }

// most is how many machines the sets may ask for together. The surge is for a rollout: if no
// machines are wanted, or it is halted before it has begun, there is none.
func most(f facts) int32 {
	wanted := f.deployment.Spec.Replicas
	if wanted == 0 || halted(f) && !begun(f) {
		return wanted
	}
	return wanted + f.surge
}

// excess is how many machines the sets ask for beyond what they may.
func excess(f facts) int32 { return bounded(total(f.all(), asked) - int64(most(f))) }

// lacking is how many machines the sets do not ask for yet though they may.
func lacking(f facts) int32 { return bounded(int64(most(f)) - total(f.all(), asked)) }

// postponed reports whether a halted deployment was scaled up, and some of its new machines have
// to wait until others are gone. As long as it is, some set in use says that it was scaled for
// another size, so that they are not forgotten.
func postponed(f facts) bool { return halted(f) && resized(f) && lacking(f) > room(f) }

// share is what a set gets when several are scaled down together.
type share struct {
	set  *v1alpha1.MachineSet
	asks int32
}

// left is how many machines of the set can still be used. Those that are preserved the set
// never deletes.
func (s share) left() int32 { return max(0, min(usable(s.set), s.asks-kept(s.set))) }

// planScaleDown takes machines from all sets of a rollout, as its deployment was scaled
// down: first those that were named for deletion, then from every set in proportion to its
// size. It never leaves fewer available than there have to be; if a set would be left with
// machines of no use, those go instead.
func planScaleDown(f facts) []operation {
	var shares []share
	for _, set := range inUse(f) {
		shares = append(shares, share{set, asked(set)})
	}
	rest := takeNamed(f, shares, excess(f))
	if last := &shares[len(shares)-1]; last.set == f.current && last.asks > f.deployment.Spec.Replicas {
		take := last.asks - f.deployment.Spec.Replicas // it is never to have more
		last.asks, rest = last.asks-take, max(0, rest-take)
	}
	takeInProportion(f, shares, rest)
	keepAvailable(f, shares)
	var operations []operation
	for _, s := range shares {
		if s.asks < asked(s.set) {
			operations = append(operations, operation{
				action: scale, set: s.set, replicas: s.asks,
				reason: fmt.Sprintf("the deployment wants %s, and all sets give their share", messages.Machines(f.deployment.Spec.Replicas)),
			})
		}
	}
	return operations
}

// planScaleUp gives all sets in use more machines, in proportion to their sizes and as far as
// there is room.
func planScaleUp(f facts) []operation {
	used := inUse(f)
	slices.Reverse(used) // the newer first
	slices.SortStableFunc(used, func(a, b *v1alpha1.MachineSet) int { return cmp.Compare(asked(b), asked(a)) })
	rest, of := min(lacking(f), room(f)), bounded(total(used, asked))
	size := of + rest
	var operations []operation
	for _, set := range used {
		more := int32(math.Round(float64(rest) * float64(asked(set)) / float64(of)))
		rest, of = rest-more, of-asked(set)
		if more > 0 {
			operations = append(operations, operation{
				action: scale, set: set, replicas: asked(set) + more, size: size,
				reason: fmt.Sprintf("the deployment wants %s, and all sets in use get their share", messages.Machines(f.deployment.Spec.Replicas)),
			})
		}
	}
	return operations
}

// takeNamed takes what was named for deletion, and returns how much is still to be taken. What
// goes already was taken before.
func takeNamed(f facts, shares []share, rest int32) int32 {
	for i := range shares {
		s := &shares[i]
		for _, n := range f.named {
			if rest > 0 && s.asks > 0 && n.stays() && controlledBy(n.machine, s.set) {
				s.asks, rest = s.asks-1, rest-1
			}
		}
	}
	return rest
}

// takeInProportion takes from every set in proportion to its size, from the largest first.
// What rounding leaves over is taken in the same order.
func takeInProportion(f facts, shares []share, rest int32) {
	bySize := make([]*share, len(shares))
	for i := range shares {
		bySize[i] = &shares[i] // the older first
	}
	slices.SortStableFunc(bySize, func(a, b *share) int { return cmp.Compare(asked(b.set), asked(a.set)) })
	for _, s := range bySize {
		take := min(rest, s.asks, max(0, asked(s.set)-proportional(f, s.set)))
		s.asks, rest = s.asks-take, rest-take
	}
	for _, s := range bySize {
		take := min(rest, s.asks)
		s.asks, rest = s.asks-take, rest-take
	}
}

// proportional is the size of a set in a deployment of the new size. The set's annotation
// says which size its own belongs to.
func proportional(f facts, set *v1alpha1.MachineSet) int32 {
	of, err := strconv.ParseInt(set.Annotations[v1alpha1.AnnotationKeyMaxReplicas], 10, 32)
	if err != nil || of <= 0 || halted(f) && !begun(f) { // in the last case there was a surge, and is none
		of = total(f.all(), asked)
	}
	size := math.Round(float64(asked(set)) * float64(most(f)) / float64(of))
	return int32(min(size, math.MaxInt32))
}

// keepAvailable gives back machines that have to stay available, those of the current set
// first, and takes others instead that are of no use.
func keepAvailable(f facts, shares []share) {
	all := f.all()
	least := min(int64(f.deployment.Spec.Replicas-f.unavailable)-total(all, kept), total(all, usable))
	var left, given int64
	for _, s := range shares {
		left += int64(s.left())
	}
	for i := len(shares) - 1; i >= 0 && left < least; i-- { // the current one comes last
		s := &shares[i]
		was, had := s.asks, s.left()
		s.asks = bounded(min(int64(max(s.asks, kept(s.set)))+least-left, int64(max(s.asks, kept(s.set)+usable(s.set)))))
		left += int64(s.left() - had)
		given += int64(s.asks - was)
	}
	for i := range shares {
		s := &shares[i]
		take := bounded(min(given, int64(s.asks-kept(s.set)-s.left())))
		s.asks, given = s.asks-take, given-int64(take)
	}
}
