package pool

import (
	"io"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/observe/explain"
	"github.com/millwright-dev/millwright/internal/observe/explain/report"
	"github.com/millwright-dev/millwright/test/support/absurd"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

// FuzzExplain checks that the report can be printed, whatever the objects contain.
func FuzzExplain(f *testing.F) {
	absurd.Seed(f, func(data []byte) { f.Add(data, true); f.Add(data, false) })
	f.Fuzz(func(t *testing.T, data []byte, deployment bool) {
		set := fixture.MachineSet()
		facts := Facts{Kind: explain.KindSet, Events: report.Events{{Reason: "R", Message: "m"}}, Lease: &coordinationv1.Lease{}}
		facts.Key.Namespace, facts.Key.Name = set.Namespace, set.Name
		if deployment {
			facts.Kind, facts.Deployment = explain.KindDeployment, fixture.MachineDeployment()
			set = fixture.OwnedBy(facts.Deployment, set)
		}
		facts.Sets = []*v1alpha1.MachineSet{set}
		facts.Machines = []*v1alpha1.Machine{fixture.Running(set, "m0"), fixture.Running(set, "m1")}
		values := []any{set, facts.Machines[0], facts.Machines[1], facts.Lease, &facts.Events[0]}
		if deployment {
			values = append(values, facts.Deployment)
		}
		absurd.Distort(data, values...)
		absurd.Within("explaining", func() { printed(t, Explain(facts, now)) })
	})
}

func printed(t *testing.T, r report.Report) {
	t.Helper()
	if r.Summary == "" || r.Verdict == "" {
		t.Errorf("empty report: %+v", r)
	}
	if err := report.Print(io.Discard, r); err != nil {
		t.Error(err)
	}
}
