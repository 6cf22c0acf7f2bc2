package explain

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/observe/explain/report"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// TestMachine_ExplainsDeletionByMCM checks explanations of Machines that MCM manages. MCM does not annotate events, so the step of a
// deletion follows from the objects that still exist. MCM's message is quoted, but no error code is derived from
// it.
func TestMachine_ExplainsDeletionByMCM(t *testing.T) {
	const denied = messages.Provider + "machine codes error: code = [PermissionDenied] message = [not allowed]. "
	uncordoned := func(f *MachineFacts) { f.Target.Node.Spec.Unschedulable = false }
	for name, tc := range map[string]struct {
		given given
		cause report.Cause
		want  string
	}{
		"the driver fails":     {deletes(failed, time.Minute, denied+messages.DeleteVM), report.Other, "not allowed"},
		"searching for the VM": {all(deletes(processing, time.Minute, messages.Terminating), uncordoned), report.Other, messages.Terminating},
		"pods are left":        {all(deletes(processing, time.Minute, messages.Drain), pod("db-0", nil)), report.EvictionPending, "still on the node"},
		"a budget":             {all(deletes(processing, time.Minute, messages.Drain), pod("db-0", nil), budget("db", policyv1.PodDisruptionBudgetStatus{ExpectedPods: 1, CurrentHealthy: 1})), report.DisruptionBudgetForbids, "never allows"},
		"the node is empty":    {deletes(processing, time.Minute, messages.DeleteVM), v1alpha1.CauseInstanceExists, "the provider is deleting VM"},
		"no node":              {all(deletes(processing, 10*time.Minute, messages.DeleteVM), noNode), v1alpha1.CauseInstanceExists, "still exists"},
		"a VM never existed":   {all(deletes(processing, time.Minute, messages.DeleteVM), notCreated), report.Other, messages.DeleteVM},
		"a denied creation":    {createFailed(time.Minute, denied, "PermissionDenied"), v1alpha1.CauseDriverFailed, "not allowed"},
	} {
		t.Run(name, func(t *testing.T) {
			got := Machine(facts(tc.given), now)
			if first := got.Why[0]; first.Cause != tc.cause || !strings.Contains(first.Text, tc.want) {
				t.Errorf("the first finding is %s: %s; want %s: %q", first.Cause, first.Text, tc.cause, tc.want)
			}
		})
	}
}

// TestMachine_DeletedByMachineSetOfMCM checks the cause of a deletion by MCM, whose event names the deleted Machine but not the
// reason.
func TestMachine_DeletedByMachineSetOfMCM(t *testing.T) {
	bare := event("MachineSet", "pool-a", "SuccessfulDelete", "Deleted machine: pool-a-x7k2p", 30*time.Minute)
	joined := event("Machine", "pool-a-x7k2p", "FailedJoin", "Machine pool-a-x7k2p failed to join the cluster in 20 minutes.", 31*time.Minute)
	for name, tc := range map[string]struct {
		given given
		cause report.Cause
	}{
		"the set's event":       {all(noMachine, bare), report.DeletedBySet},
		"the Machine's, too":    {all(noMachine, bare, joined), v1alpha1.CauseMachineFailed},
		"its deployment scaled": {all(noMachine, bare, scaled(v1alpha1.CauseScaledDown, "Scaled down machine set pool-a to 2", 31*time.Minute)), report.DeletedBySet},
	} {
		if got := Machine(facts(tc.given), now); got.Replaced[0].Cause != tc.cause {
			t.Errorf("%s: %+v, want %s", name, got.Replaced[0], tc.cause)
		}
	}
}

// TestMachine_CreationFailureHasCauseOfEvent checks the cause of a creation that the manager did not attempt. In this case,
// there is no error code, but the manager annotates its event. Without this annotation, the message is quoted.
func TestMachine_CreationFailureHasCauseOfEvent(t *testing.T) {
	const text = "the manager's reason"
	for _, cause := range []string{"", v1alpha1.CauseInvalidSpec, v1alpha1.CauseInvalidClassInputs, v1alpha1.CauseBootstrapFailed, v1alpha1.CauseInstanceOwned} {
		given, want := createFailed(time.Minute, text, ""), report.CreationBlocked
		if cause != "" {
			given, want = all(given, noted("FailedCreate", text, time.Minute, cause)), report.Cause(cause)
		}
		first := Machine(facts(given), now).Why[0]
		if first.Cause != want || !strings.Contains(first.Text, text) || first.Remedy == "" {
			t.Errorf("event with cause %q: the first finding is %+v, want %s with a remedy", cause, first, want)
		}
	}
}

// TestMachine_FailedJoinIsNotAnErrorOfTheDriver checks the cause of a Machine that has not joined in time, for which
// future versions of MCM record an error code of their own.
func TestMachine_FailedJoinIsNotAnErrorOfTheDriver(t *testing.T) {
	given := all(phase(v1alpha1.MachineFailed, time.Second), noNode,
		last(create, failed, time.Second, "Machine pool-a-x7k2p failed to join the cluster in 20 minutes.", v1alpha1.FailedJoin))
	if first := Machine(facts(given), now).Why[0]; first.Cause != v1alpha1.CauseCreationTimeout {
		t.Errorf("the first finding is %s: %s", first.Cause, first.Text)
	}
}

// TestCopied_NeedsConditionsOfTheNode checks that conditions of other programs on a Machine do not count as its node.
func TestCopied_NeedsConditionsOfTheNode(t *testing.T) {
	machine := &v1alpha1.Machine{}
	machine.Status.Conditions = []corev1.NodeCondition{{Type: v1alpha1.ConditionMachineJoined, Status: corev1.ConditionFalse, Reason: v1alpha1.FailedJoin}}
	if got := Copied(machine); got.Node != nil || got.Copied {
		t.Errorf("target %+v of a Machine that has not joined", got)
	}
	machine.Status.Conditions = append(machine.Status.Conditions, corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue})
	if got := Copied(machine); got.Node == nil || !got.Copied {
		t.Errorf("target %+v of a Machine that has joined", got)
	}
}
