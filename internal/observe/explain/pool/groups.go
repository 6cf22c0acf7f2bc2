package pool

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/observe/explain"
	"github.com/millwright-dev/millwright/internal/observe/explain/report"
	"github.com/millwright-dev/millwright/internal/pool/inplaceupdate"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// MostExamples is how many Machines of a pool are explained from all their facts, which cost about a
// dozen requests each.
const MostExamples = 4

// usable reports whether a Machine is as far as it can come.
func usable(machine *v1alpha1.Machine) bool {
	phase := machine.Status.CurrentStatus.Phase
	return !report.Leaves(machine) && (phase == v1alpha1.MachineRunning || phase == v1alpha1.MachineAvailable)
}

// underUpdate reports whether a Machine that is still of use is selected for an update in place.
func underUpdate(machine *v1alpha1.Machine) bool {
	return usable(machine) && inplaceupdate.Updating(machine)
}

// problem is why a Machine is not well, without the values of the sentence.
type problem struct {
	verdict report.Verdict
	report.Statement
	code string
}

// listed are the facts of a Machine of which only the object, its owners and some events are known.
func (f *Facts) listed(machine *v1alpha1.Machine, events report.Events) explain.MachineFacts {
	return explain.MachineFacts{
		Key: client.ObjectKeyFromObject(machine), Machine: machine, Set: f.setOf(machine), Deployment: f.Deployment,
		Target: explain.Copied(machine), Events: events,
	}
}

func (f *Facts) setOf(machine *v1alpha1.Machine) *v1alpha1.MachineSet {
	i := slices.IndexFunc(f.Sets, func(set *v1alpha1.MachineSet) bool { return metav1.IsControlledBy(machine, set) })
	if i < 0 {
		return nil
	}
	return f.Sets[i]
}

// explainOne explains a Machine of a pool, and returns the finding that says why it is not well. What is
// wrong with the node of one that is well passes, or makes it unwell soon.
func explainOne(facts explain.MachineFacts, now time.Time) (report.Report, report.Finding) {
	explained := explain.Machine(facts, now)
	named := slices.IndexFunc(explained.Why, func(f report.Finding) bool { return f.Cause == v1alpha1.CauseNamedForDeletion })
	if explained.Verdict == report.Healthy && named >= 0 {
		return explained, explained.Why[named]
	}
	if i := slices.IndexFunc(explained.Why, func(f report.Finding) bool { return f.Cause != report.ManagerNotRunning }); i >= 0 {
		return explained, explained.Why[i]
	}
	return explained, report.Finding{Cause: report.Other, Text: "nothing is known of why"}
}

// group are Machines with the same problem, the one that was reported last first.
type group []*v1alpha1.Machine

// groups returns the Machines that are not well by their problem: first those of the newest template,
// which a rollout waits for, and last those that are being deleted; else the largest group first.
func (f *Facts) groups(machines []*v1alpha1.Machine, now time.Time) []group {
	same, events := map[problem]group{}, f.Events.By(explain.KindMachine)
	for _, machine := range machines {
		if !usable(machine) || underUpdate(machine) || explain.NamedAndKept(machine, f.setOf(machine), now) {
			explained, finding := explainOne(f.listed(machine, events[machine.Name]), now)
			p := problem{explained.Verdict, finding.Statement, finding.Code}
			same[p] = append(same[p], machine)
		}
	}
	if len(same) == 0 {
		return nil // there may be no set
	}
	return ordered(same, f.Current())
}

func ordered(same map[problem]group, current *v1alpha1.MachineSet) []group {
	rank := func(g group) int {
		switch {
		case report.Leaves(g[0]):
			return 2
		case current != nil && slices.ContainsFunc(g, func(m *v1alpha1.Machine) bool { return metav1.IsControlledBy(m, current) }):
			return 0
		}
		return 1
	}
	for _, g := range same {
		slices.SortFunc(g, func(a, b *v1alpha1.Machine) int {
			newer := b.Status.LastOperation.LastUpdateTime.Compare(a.Status.LastOperation.LastUpdateTime.Time)
			return cmp.Or(newer, cmp.Compare(a.Name, b.Name))
		})
	}
	return slices.SortedFunc(maps.Values(same), func(a, b group) int {
		return cmp.Or(rank(a)-rank(b), len(b)-len(a), cmp.Compare(a[0].Name, b[0].Name))
	})
}

// Representatives returns one Machine for each of the first causes, the most important first.
func (f *Facts) Representatives(now time.Time) []*v1alpha1.Machine {
	var some []*v1alpha1.Machine
	for _, g := range f.groups(f.Machines, now) {
		if len(some) < MostExamples {
			some = append(some, g[0])
		}
	}
	return some
}

// troubled adds a finding for each cause for which Machines are not well.
func (e *explainer) troubled(machines []*v1alpha1.Machine) {
	more := 0
	for i, g := range e.groups(machines, e.now) {
		if i < MostExamples {
			e.group(g)
		} else {
			more += len(g)
		}
	}
	if more > 0 {
		e.Why(moreCauses, "", time.Time{}, "{count}", messages.Machines(more))
	}
}

func (e *explainer) group(g group) {
	first := g[0]
	facts, known := e.Examples[first.Name]
	if !known {
		facts = e.listed(first, e.Events)
	}
	explained, finding := explainOne(facts, e.now)
	is := map[report.Verdict]string{report.NotRunning: "not Running", report.Deleting: "being deleted"}[explained.Verdict]
	if is == "" && (finding.Cause == report.InPlaceUpdate || finding.Cause == v1alpha1.CauseNamedForDeletion) {
		is = "Running"
	}
	if is == "" {
		return // since its pool was listed
	}
	clause := finding
	clause.Code = "" // is kept beside the text
	finding.Object, finding.Remedy = "Machine "+first.Name, ""
	finding.Text = fmt.Sprintf("%s is %s: %s", finding.Object, is, clause)
	if len(g) > 1 {
		finding.Text = fmt.Sprintf("%s are %s, %s among them: %s", messages.Machines(len(g)), is, finding.Object, clause)
	}
	if len(explained.Advice) > 0 {
		finding.Remedy = explained.Advice[0]
	}
	e.Add(finding)
	e.Advise(seeMore, "{machine}", first.Name)
}
