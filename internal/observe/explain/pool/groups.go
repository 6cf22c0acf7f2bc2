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

// MaxExamples is how many Machines of a pool are explained with all of their facts. Reading these takes about a
// dozen requests per Machine.
const MaxExamples = 4

// usable reports whether a Machine is in its final phase and is not being deleted.
func usable(machine *v1alpha1.Machine) bool {
	phase := machine.Status.CurrentStatus.Phase
	return !report.IsDeleting(machine) && (phase == v1alpha1.MachineRunning || phase == v1alpha1.MachineAvailable)
}

// underUpdate reports whether a usable Machine is selected for an in-place update.
func underUpdate(machine *v1alpha1.Machine) bool {
	return usable(machine) && inplaceupdate.Updating(machine)
}

// problem identifies why a Machine is unhealthy. It does not contain the values in the sentence.
type problem struct {
	verdict report.Verdict
	report.Statement
	code string
}

// listed returns the facts about a Machine that are known from lists: the Machine, its owners and some events.
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

// explainOne explains a Machine of a pool, and returns the finding about why it is unhealthy. Findings about
// the node of a Machine that is Running are omitted, because they are temporary or change its phase soon.
func explainOne(facts explain.MachineFacts, now time.Time) (report.Report, report.Finding) {
	explained := explain.Machine(facts, now)
	named := slices.IndexFunc(explained.Why, func(f report.Finding) bool { return f.Cause == v1alpha1.CauseNamedForDeletion })
	if explained.Verdict == report.Healthy && named >= 0 {
		return explained, explained.Why[named]
	}
	if i := slices.IndexFunc(explained.Why, func(f report.Finding) bool { return f.Cause != report.ManagerNotRunning }); i >= 0 {
		return explained, explained.Why[i]
	}
	return explained, report.Finding{Cause: report.Other, Text: "the cause is unknown"}
}

// group contains Machines with the same problem. They are sorted by the time of the last report, the latest first.
type group []*v1alpha1.Machine

// groups groups the unhealthy Machines by their problem. Groups with Machines of the latest template, for which a
// rollout waits, come first, and Machines that are being deleted last. Otherwise, larger groups come first.
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
		case report.IsDeleting(g[0]):
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

// Representatives returns one Machine for each of the most important problems, in the order of groups.
func (f *Facts) Representatives(now time.Time) []*v1alpha1.Machine {
	var some []*v1alpha1.Machine
	for _, g := range f.groups(f.Machines, now) {
		if len(some) < MaxExamples {
			some = append(some, g[0])
		}
	}
	return some
}

// unhealthy adds a finding for each problem of the Machines.
func (e *explainer) unhealthy(machines []*v1alpha1.Machine) {
	more := 0
	for i, g := range e.groups(machines, e.now) {
		if i < MaxExamples {
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
		return // the Machine has become healthy since the list
	}
	clause := finding
	clause.Code = "" // the finding has its own field for it
	finding.Object, finding.Remedy = "Machine "+first.Name, ""
	finding.Text = fmt.Sprintf("%s is %s: %s", finding.Object, is, clause)
	if len(g) > 1 {
		finding.Text = fmt.Sprintf("%s are %s, including %s: %s", messages.Machines(len(g)), is, finding.Object, clause)
	}
	if len(explained.Advice) > 0 {
		finding.Remedy = explained.Advice[0]
	}
	e.Add(finding)
	e.Advise(seeMore, "{machine}", first.Name)
}
