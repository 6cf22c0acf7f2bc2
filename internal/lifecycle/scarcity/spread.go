package scarcity

import (
	"cmp"
	"slices"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// Choice is a class that the next Machine of a set may be made with.
type Choice struct {
	Class *v1alpha1.MachineClass
	// Machines is how many Machines of the set are in the zone of the class.
	Machines int
	// Out reports that all Machines in the zone of the class are unhealthy, and are to be replaced elsewhere.
	Out bool
}

// Order returns the choices in the order in which they are to be tried: without a limit as they are;
// with a limit of the skew, classes whose zone has more Machines than the emptiest one, by so many or
// more, come last, the emptier zones first. Zones that are out come after all others, and do not count
// as empty.
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
