package explain

import (
	"io"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/observe/explain/report"
	"github.com/millwright-dev/millwright/test/support/absurd"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

var absurdNow = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// FuzzExplainMachine checks that the report can be printed, whatever the objects contain.
func FuzzExplainMachine(f *testing.F) {
	absurd.Seed(f, func(data []byte) { f.Add(data, true); f.Add(data, false) })
	f.Fuzz(func(t *testing.T, data []byte, deleting bool) {
		facts := MachineFacts{
			Machine: fixture.Machine(), Set: fixture.MachineSet(), Deployment: fixture.MachineDeployment(), Class: fixture.MachineClass(),
			VM: fixture.VirtualMachine(), Lease: &coordinationv1.Lease{}, Secrets: []Secret{{HasUserData: true}},
			Events: report.Events{{Reason: "R", Message: "m"}},
		}
		facts.Key.Namespace, facts.Key.Name = facts.Machine.Namespace, facts.Machine.Name
		facts.Target.Node = fixture.Node()
		facts.Target.Pods, facts.Target.Budgets = []corev1.Pod{*fixture.Pod()}, []policyv1.PodDisruptionBudget{{}}
		facts.Target.Attachments = []storagev1.VolumeAttachment{{}}
		facts.Machine.Status.CurrentStatus.Phase = v1alpha1.MachineRunning
		if deleting {
			facts.Machine.DeletionTimestamp = &facts.Machine.CreationTimestamp
		}
		absurd.Distort(data, facts.Machine, facts.Set, facts.Deployment, facts.Class, facts.VM, facts.Lease, facts.Target.Node,
			&facts.Target.Pods[0], &facts.Target.Budgets[0], &facts.Target.Attachments[0], &facts.Events[0], &facts.Flags)
		absurd.Within("explaining", func() { printed(t, Machine(facts, absurdNow)) })
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
