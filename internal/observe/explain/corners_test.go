package explain

import (
	"bytes"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// idle adds an old set that has and wants no machines, with that condition.
func idle(kind v1alpha1.MachineSetConditionType, reason, message string) givenPool {
	return func(f *PoolFacts) {
		old := *f.Sets[0].DeepCopy()
		old.Name, old.UID, old.Spec.Replicas, old.Status = "pool-0", "idle", 0, v1alpha1.MachineSetStatus{}
		old.Spec.Template.Spec.Class.Name = "pool-v0"
		old.Status.Conditions = []v1alpha1.MachineSetCondition{{Type: kind, Status: v1alpha1.ConditionTrue, Reason: reason, Message: message}}
		f.Sets = append([]v1alpha1.MachineSet{old}, f.Sets...)
	}
}

func pausedPool(f *PoolFacts) { f.Deployment.Spec.Paused = true }

// TestWhatAnOperatorIsToldOfAPool, beside the golden files: a sentence that has to be there, and one
// that must not be.
func TestWhatAnOperatorIsToldOfAPool(t *testing.T) {
	for name, s := range map[string]struct {
		kind      string
		given     givenPool
		verdict   Verdict
		says, not string
	}{
		"preserved, and not beyond those wanted": {kindSet, keeps(0), Healthy, "has all 3 machines", "preserved"},
		"preserved, and goes": {kindSet, allOf(keeps(0), func(f *PoolFacts) {
			f.Sets[0].Spec.Replicas, f.Machines[0].DeletionTimestamp = 1, ptr.To(ago(time.Minute))
		}), Incomplete, "", "preserved"},
		"none wanted, and some left":             {kindSet, func(f *PoolFacts) { f.Sets[0].Spec.Replicas = 0 }, Incomplete, "the others are being deleted", "has none"},
		"all there, and not counted":             {kindSet, func(f *PoolFacts) { f.Sets[0].Status.AvailableReplicas = 2 }, Incomplete, "has not counted yet", "are being made"},
		"sets unread, some of an older template": {kindDeployment, allOf(unlisted("MachineSet"), func(f *PoolFacts) { f.Deployment.Status.UpdatedReplicas = 2 }), Unknown, "2 of 3 are of its newest", ""},
		"sets unread, and rolls":                 {kindDeployment, allOf(unlisted("MachineSet"), func(f *PoolFacts) { f.Deployment.Status.UpdatedReplicas = 2 }), Unknown, "a rollout goes on: 1 machine is", ""},
		"back at an earlier template": {kindDeployment, allOf(rolls, func(f *PoolFacts) {
			f.Deployment.Spec.Template.Spec.Class.Name = "pool-v1"
		}), Incomplete, "3 of 4 are of its newest", ""},
		"an old set without machines is stuck": {kindDeployment, idle(v1alpha1.MachineSetReplicaFailure, "FailedCreate", "forbidden"), Healthy, "", "forbidden"},
		"the current set wants none and is refused": {kindDeployment, allOf(setSays(v1alpha1.MachineSetReplicaFailure, "InvalidSpec", "spec.selector: required"), func(f *PoolFacts) {
			f.Sets[0].Spec.Replicas, f.Deployment.Spec.Replicas, f.Machines = 0, 0, nil
		}), Healthy, "spec.selector: required", ""},
		"an invalid one is not about to be looked at": {kindDeployment, allOf(deploymentSays(v1alpha1.MachineDeploymentProgressing, v1alpha1.ConditionFalse, "InvalidSpec", "spec.replicas"), func(f *PoolFacts) {
			f.Deployment.Generation = 4
		}), Healthy, "spec.replicas", "has not acted"},
		"a wish while it is paused": {kindDeployment, allOf(pausedPool, func(f *PoolFacts) {
			f.Deployment.Spec.RollbackTo = &v1alpha1.RollbackConfig{Revision: 1}
		}), Healthy, "waits for the end of the pause", ""},
		"paused, and the sets are unread": {kindDeployment, allOf(unlisted("MachineSet"), pausedPool), Unknown, "", "no machine of another template"},
		"a deadline that has passed": {kindDeployment, allOf(rolls, deploymentSays(v1alpha1.MachineDeploymentProgressing, v1alpha1.ConditionTrue, "MachineSetUpdated", "x"), func(f *PoolFacts) {
			f.Deployment.Spec.ProgressDeadlineSeconds = ptr.To[int32](60)
		}), Incomplete, "a rollout goes on", "counts as stalled"},
		"an overlap of both is said once": {kindDeployment, allOf(setSays(overlaps, overlaps, "selected by another set"), deploymentSays(overlaps, v1alpha1.ConditionTrue, overlaps, "selected by other")), Healthy, "selected by other", "selected by another set"},
		"what was refused is not any more": {kindSet, allOf(setSays(v1alpha1.MachineSetReplicaFailure, reasonInvalidSpec, "spec.selector: required"), func(f *PoolFacts) {
			f.Sets[0].Status.Conditions[0].Status = v1alpha1.ConditionFalse
		}), Healthy, "", "spec.selector: required"},
		"another set backs off": {kindDeployment, allOf(rolls, func(f *PoolFacts) {
			f.Events = append(f.Events, poolEvent(kindSet, "pool-0", corev1.EventTypeWarning, "BackOff", "Machines failed before they joined, 5 times in a row: the next are made in 40s at the earliest", time.Second))
		}), Incomplete, "", "it waits before it makes"},
		"the newest delay counts": {kindSet, allOf(lacks(1), backsOff(time.Second), func(f *PoolFacts) {
			f.Events = append(f.Events, poolEvent(kindSet, "pool-a", corev1.EventTypeWarning, "BackOff", "Machines failed before they joined, 4 times in a row: the next are made in 20s at the earliest", 15*time.Second))
		}), Incomplete, "5 times in a row", ""},
		"long ready, and not counted": {kindSet, func(f *PoolFacts) {
			f.Sets[0].Spec.MinReadySeconds, f.Sets[0].Status.AvailableReplicas = 10, 2
		}, Incomplete, "has not counted yet", "must stay ready"},
		"Terminating, though nobody deletes it": {kindSet, func(f *PoolFacts) {
			f.Machines[0].Status.CurrentStatus.Phase = v1alpha1.MachineTerminating
		}, Incomplete, "has 2 of 3 machines available", ""},
		"those that go are said last": {kindSet, func(f *PoolFacts) {
			for i := range f.Machines[1:] {
				f.Machines[i].DeletionTimestamp = ptr.To(ago(time.Minute))
			}
			f.Machines[2].Status.CurrentStatus.Phase = v1alpha1.MachineUnknown
		}, Incomplete, "has 0 of 3 machines available: Machine pool-a-3 is not Running", ""},
	} {
		t.Run(name, func(t *testing.T) {
			report := ExplainPool(pool(s.kind, s.given), now)
			var text bytes.Buffer
			if err := Print(&text, report); err != nil {
				t.Fatal(err)
			}
			said := strings.Join(strings.Fields(text.String()), " ")
			if report.Verdict != s.verdict || !strings.Contains(said, s.says) || s.not != "" && strings.Contains(said, s.not) {
				t.Errorf("verdict %s, want %s; %q should be said, and %q not:\n%s", report.Verdict, s.verdict, s.says, s.not, said)
			}
		})
	}
}

// TestAnOldFinalizerIsTheManagers: machines that an old version of MCM made have another one.
func TestAnOldFinalizerIsTheManagers(t *testing.T) {
	old := func(f *Facts) { f.Machine.Finalizers = []string{v1alpha1.FinalizerLegacy} }
	for _, f := range Explain(facts(deleted(time.Minute), old), now).Why {
		if f.Cause == Finalizer {
			t.Errorf("it waits for %q", f.Text)
		}
	}
}

// TestNobodyReplacesForASetThatGoes: a set that is being deleted makes no other machine.
func TestNobodyReplacesForASetThatGoes(t *testing.T) {
	going := func(f *Facts) { f.Owners.Set.DeletionTimestamp = &metav1.Time{Time: now} }
	report := Explain(facts(phase(v1alpha1.MachinePending, time.Minute), noNode, going), now)
	var next []string
	for _, step := range report.Next {
		next = append(next, step.Text)
	}
	if said := strings.Join(next, "; "); !strings.Contains(said, "nobody replaces it: machine set") {
		t.Errorf("said %q", said)
	}
}
