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

// otherClasses adds how many Machines have a class that is not their first choice, because of missing capacity or a
// zone outage.
func (e *explainer) otherClasses() {
	type instead struct{ first, class, why string }
	statements := map[string]report.Statement{v1alpha1.CauseNoCapacity: otherClass, v1alpha1.CauseZoneOutage: otherZone}
	counts := map[instead]int{}
	for _, machine := range e.Machines {
		why := machine.Annotations[v1alpha1.AnnotationKeyClassReason]
		if _, known := statements[why]; known && !report.IsDeleting(machine) {
			counts[instead{scarcity.OfMachine(machine)[0], machine.Spec.Class.Name, why}]++
		}
	}
	sorted := slices.SortedFunc(maps.Keys(counts), func(a, b instead) int {
		return slices.Compare([]string{a.first, a.class, a.why}, []string{b.first, b.class, b.why})
	})
	for _, of := range sorted {
		have, they := "have", "they were"
		if counts[of] == 1 {
			have, they = "has", "it was"
		}
		e.Why(statements[of.why], "", time.Time{}, "{count}", messages.Machines(counts[of]), "{have}", have, "{they}", they, "{class}", of.class, "{first}", of.first)
	}
}
