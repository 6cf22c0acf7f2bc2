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

// otherClasses says how many Machines have another class than their first choice, for want of capacity or as
// its zone was out.
func (e *explainer) otherClasses() {
	type instead struct{ first, class, why string }
	says := map[string]report.Statement{v1alpha1.CauseNoCapacity: otherClass, v1alpha1.CauseZoneOutage: otherZone}
	counts := map[instead]int{}
	for _, machine := range e.Machines {
		why := machine.Annotations[v1alpha1.AnnotationKeyClassReason]
		if _, said := says[why]; said && !report.Leaves(machine) {
			counts[instead{scarcity.OfMachine(machine)[0], machine.Spec.Class.Name, why}]++
		}
	}
	sorted := slices.SortedFunc(maps.Keys(counts), func(a, b instead) int {
		return slices.Compare([]string{a.first, a.class, a.why}, []string{b.first, b.class, b.why})
	})
	for _, of := range sorted {
		are := "are"
		if counts[of] == 1 {
			are = "is"
		}
		e.Why(says[of.why], "", time.Time{}, "{count}", messages.Machines(counts[of]), "{are}", are, "{class}", of.class, "{first}", of.first)
	}
}
