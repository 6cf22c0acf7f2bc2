package scarcity

import (
	"cmp"
	"slices"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// Choice is a class that may be used for the next Machine of a set.
type Choice struct {
	Class *v1alpha1.MachineClass
	// Machines is how many Machines of the set are in the zone of the class.
	Machines int
	// Out reports an outage of the zone of the class: all its Machines are unhealthy and must be replaced
	// elsewhere.
	Out bool
}

// Order returns the choices in the order in which they should be tried. Without spread, the order does not
// change. With spread, classes come last whose zone has at least skew more Machines than the zone with the
// fewest, sorted by their excess. Zones with an outage come after all others and do not count as the zone with
// the fewest Machines.
func Order(choices []Choice, skew int, spread bool) []Choice {
	ordered := slices.Clone(choices)
	in := slices.DeleteFunc(slices.Clone(choices), func(c Choice) bool { return c.Out })
	if spread && len(in) > 0 {
		fewest := slices.MinFunc(in, func(a, b Choice) int { return cmp.Compare(a.Machines, b.Machines) }).Machines
		beyond := func(c Choice) int { return max(0, c.Machines+1-fewest-skew) }
		slices.SortStableFunc(ordered, func(a, b Choice) int { return cmp.Compare(beyond(a), beyond(b)) })
	}
	slices.SortStableFunc(ordered, func(a, b Choice) int { return cmp.Compare(a.last(), b.last()) })
	return ordered
}

func (c Choice) last() int {
	if c.Out {
		return 1
	}
	return 0
}

// Placed counts one more Machine in the zone of a class.
func Placed(choices []Choice, class *v1alpha1.MachineClass) {
	for i := range choices {
		if Zone(choices[i].Class) == Zone(class) {
			choices[i].Machines++
		}
	}
}
