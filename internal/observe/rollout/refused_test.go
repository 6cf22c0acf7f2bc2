package rollout

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// TestRollout_InvalidDeploymentIsNotComplete checks that a rejected deployment is not complete, even
// though all its machines run.
func TestRollout_InvalidDeploymentIsNotComplete(t *testing.T) {
	for reason, message := range map[string]string{
		v1alpha1.DeploymentReasonSelectsAll: "spec.selector: the empty selector selects all machines; add labels to it",
		v1alpha1.DeploymentReasonInvalid:    "spec.selector: it does not match a new machine set",
	} {
		t.Run(reason, func(t *testing.T) {
			status := StatusOf(give(progress(v1alpha1.ConditionFalse, reason, message+".")).facts(), noon)
			if status.Outcome != Progressing {
				t.Errorf("outcome %s", status.Outcome)
			}
			if line := Line(status); strings.Count(line, message) != 1 {
				t.Errorf("the reason is not reported exactly once: %s", line)
			}
		})
	}
}

// TestMachineSet_TerminatingWithoutDeletion checks a machine in phase Terminating that is not being
// deleted, as after a restore from a backup. Its set counts it as updated.
func TestMachineSet_TerminatingWithoutDeletion(t *testing.T) {
	stays := func(g *given) { g.machines[0].Status.CurrentStatus.Phase = leaving }
	if status := StatusOf(give(stays, counts(3, 2, 3)).facts(), noon); status.Updated != 3 {
		t.Errorf("%d updated", status.Updated)
	}
}

// TestMachineDeployment_DeletionDoesNotStart checks that the reasons reported by the sets are shown for the
// rollout.
func TestMachineDeployment_DeletionDoesNotStart(t *testing.T) {
	const denied = `deleting machine pool-a-0: admission webhook "policy" denied the request`
	fails := func(g *given) {
		g.set("a").Status.Conditions = []v1alpha1.MachineSetCondition{{Type: v1alpha1.MachineSetReplicaFailure, Status: v1alpha1.ConditionTrue, Reason: "FailedDelete", Message: denied, LastTransitionTime: before(time.Minute)}}
		hasCondition(v1alpha1.MachineDeploymentReplicaFailure, v1alpha1.ConditionTrue, "FailedDelete", denied)(g)
	}
	for name, g := range map[string]*given{
		"of the deployment": give(fails, declared(func(d *v1alpha1.MachineDeployment) { d.DeletionTimestamp = ptr.To(metav1.NewTime(noon)) })),
		"of old machines":   give(rolls, fails, func(g *given) { g.set("a").Spec.Replicas = 0 }),
	} {
		t.Run(name, func(t *testing.T) {
			count := 0
			waits := StatusOf(g.facts(), noon).Waits
			for _, wait := range waits {
				if strings.Contains(wait.Text, "MachineSet pool-a: FailedDelete: "+denied) {
					count++
				}
			}
			if count != 1 || !strings.Contains(waits[0].Text, denied) {
				t.Errorf("it waits for %+v", waits)
			}
		})
	}
}

// TestMachineSet_FreezeIsReportedOnce checks that a freeze is shown once, although the deployment has a
// condition with a different message.
func TestMachineSet_FreezeIsReportedOnce(t *testing.T) {
	isFrozen := hasCondition(v1alpha1.MachineDeploymentFrozen, v1alpha1.ConditionTrue, v1alpha1.DeploymentReasonFrozen, `MachineSet "pool-b" is frozen`)
	why := v1alpha1.MachineSetCondition{Type: v1alpha1.MachineSetFrozen, Status: v1alpha1.ConditionTrue, Message: "9 machines exist"}
	for name, tc := range map[string]struct {
		set  change
		want string
	}{
		"with the condition of the set":    {func(g *given) { g.set("b").Status.Conditions = []v1alpha1.MachineSetCondition{why} }, "9 machines exist"},
		"without the condition of the set": {func(*given) {}, "is frozen"},
	} {
		t.Run(name, func(t *testing.T) {
			var frozen []string
			for _, wait := range StatusOf(give(rolls, isFrozen, tc.set).facts(), noon).Waits {
				if strings.Contains(wait.Text, "frozen") {
					frozen = append(frozen, wait.Text)
				}
			}
			if len(frozen) != 1 || !strings.Contains(frozen[0], tc.want) {
				t.Errorf("got %q, want %q", frozen, tc.want)
			}
		})
	}
}
