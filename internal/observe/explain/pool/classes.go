package pool

import (
	"maps"
	"slices"
	"time"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/scarcity"
	"github.com/millwright-dev/millwright/internal/observe/explain/report"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// otherClasses says how many Machines have another class than their first choice, for want of capacity.
func (e *explainer) otherClasses() {
	type instead struct{ first, class string }
	counts := map[instead]int{}
	for _, machine := range e.Machines {
		if !report.Leaves(machine) && machine.Annotations[v1alpha1.AnnotationKeyClassReason] == v1alpha1.CauseNoCapacity {
			counts[instead{scarcity.OfMachine(machine)[0], machine.Spec.Class.Name}]++
		}
	}
	sorted := slices.SortedFunc(maps.Keys(counts), func(a, b instead) int {
		return slices.Compare([]string{a.first, a.class}, []string{b.first, b.class})
	})
	for _, of := range sorted {
		are := "are"
		if counts[of] == 1 {
			are = "is"
		}
		e.Why(otherClass, "", time.Time{}, "{count}", messages.Machines(counts[of]), "{are}", are, "{class}", of.class, "{first}", of.first)
	}
}
