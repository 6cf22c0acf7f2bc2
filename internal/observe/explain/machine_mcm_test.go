package explain

import (
	"strings"
	"testing"
	"time"

	policyv1 "k8s.io/api/policy/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/observe/explain/report"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// TestBesideMCM: MCM annotates no events. What its deletions wait for follows from what is left,
// and its sentence is quoted; no error code is guessed from it.
func TestBesideMCM(t *testing.T) {
	const denied = messages.Provider + "machine codes error: code = [PermissionDenied] message = [not allowed]. "
	uncordoned := func(f *MachineFacts) { f.Target.Node.Spec.Unschedulable = false }
	for name, tc := range map[string]struct {
		given given
		cause report.Cause
		says  string
	}{
		"the driver fails":          {deletes(failed, time.Minute, denied+messages.DeleteVM), report.Other, "not allowed"},
		"the VM is looked for":      {all(deletes(works, time.Minute, messages.Terminating), uncordoned), report.Other, messages.Terminating},
		"pods are left":             {all(deletes(works, time.Minute, messages.Drain), pod("db-0", nil)), report.EvictionPending, "still on the node"},
		"a budget":                  {all(deletes(works, time.Minute, messages.Drain), pod("db-0", nil), budget("db", policyv1.PodDisruptionBudgetStatus{ExpectedPods: 1, CurrentHealthy: 1})), report.DisruptionBudgetForbids, "never allows"},
		"the node is empty":         {deletes(works, time.Minute, messages.DeleteVM), v1alpha1.CauseInstanceExists, "the provider is deleting VM"},
		"the node is gone":          {all(deletes(works, 10*time.Minute, messages.DeleteVM), noNode), v1alpha1.CauseInstanceExists, "still has it"},
		"there never was a VM":      {all(deletes(works, time.Minute, messages.DeleteVM), unborn), report.Other, messages.DeleteVM},
		"a creation that is denied": {createFailed(time.Minute, denied, "PermissionDenied"), v1alpha1.CauseDriverFailed, "not allowed"},
	} {
		t.Run(name, func(t *testing.T) {
			got := Machine(facts(tc.given), now)
			if first := got.Why[0]; first.Cause != tc.cause || !strings.Contains(first.Text, tc.says) {
				t.Errorf("the first finding is %s: %s; want %s: %q", first.Cause, first.Text, tc.cause, tc.says)
			}
		})
	}
}

// TestDeletedByTheSetOfMCM: its event says which Machine it deleted, and not why.
func TestDeletedByTheSetOfMCM(t *testing.T) {
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

// TestACreationHasTheCauseOfItsEvent: where a creation was never tried, no error code tells why, so
// the manager annotates its event. Without one the sentence is quoted, and no cause is guessed.
func TestACreationHasTheCauseOfItsEvent(t *testing.T) {
	const text = "the manager's reason"
	for _, cause := range []string{"", v1alpha1.CauseInvalidSpec, v1alpha1.CauseInvalidClassInputs, v1alpha1.CauseBootstrapFailed, v1alpha1.CauseInstanceOwned} {
		given, want := createFailed(time.Minute, text, ""), report.CreationBlocked
		if cause != "" {
			given, want = all(given, noted("FailedCreate", text, time.Minute, cause)), report.Cause(cause)
		}
		first := Machine(facts(given), now).Why[0]
		if first.Cause != want || !strings.Contains(first.Text, text) || first.Remedy == "" {
			t.Errorf("the event says %q: the first finding is %+v, want %s with a remedy", cause, first, want)
		}
	}
}
