package pool

import (
	"bytes"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/observe/explain"
	"github.com/millwright-dev/millwright/internal/observe/explain/report"
)

// idle adds an old set that has and wants no machines, with that condition.
func idle(kind v1alpha1.MachineSetConditionType, reason, message string) given {
	return func(f *Facts) {
		old := f.Sets[0].DeepCopy()
		old.Name, old.UID, old.Spec.Replicas, old.Status = "pool-0", "idle", 0, v1alpha1.MachineSetStatus{}
		old.Spec.Template.Spec.Class.Name = "pool-v0"
		old.Status.Conditions = []v1alpha1.MachineSetCondition{{Type: kind, Status: v1alpha1.ConditionTrue, Reason: reason, Message: message}}
		f.Sets = append([]*v1alpha1.MachineSet{old}, f.Sets...)
	}
}

func pausedPool(f *Facts) { f.Deployment.Spec.Paused = true }

// inExcess has one of three machines be for pods, so many be asked for beyond it, and an autoscaler give
// so many at most.
func inExcess(excess, most string) given {
	return func(f *Facts) {
		f.Deployment.Spec.Replicas, f.Deployment.Spec.ExcessReplicas = 1, ptr.To(intstr.Parse(excess))
		if most != "" {
			metav1.SetMetaDataAnnotation(&f.Deployment.ObjectMeta, v1alpha1.AnnotationKeyAutoscalerMaxSize, most)
		}
	}
}

// TestSentencesOfAPool, beside the golden files: a sentence that has to be there, and one
// that must not be.
func TestSentencesOfAPool(t *testing.T) {
	for name, s := range map[string]struct {
		kind      string
		given     given
		verdict   report.Verdict
		says, not string
	}{
		"preserved, and not beyond those wanted": {explain.KindSet, keeps(0), report.Healthy, "has all 3 machines", "preserved"},
		"preserved, and within those wanted":     {explain.KindSet, allOf(keeps(0), func(f *Facts) { f.Sets[0].Spec.Replicas = 2 }), report.Incomplete, "3 machines exist, and 2 are wanted: the others are being deleted", "preserved"},
		"preserved, and goes": {explain.KindSet, allOf(keeps(0), func(f *Facts) {
			f.Sets[0].Spec.Replicas, f.Machines[0].DeletionTimestamp = 1, ptr.To(ago(time.Minute))
		}), report.Incomplete, "", "preserved"},
		"some in excess":                         {explain.KindDeployment, inExcess("2", ""), report.Healthy, "has what it wants: 1 machine for pods, and 2 in excess", "being deleted"},
		"too few in excess":                      {explain.KindDeployment, allOf(inExcess("2", ""), func(f *Facts) { f.Deployment.Spec.Replicas = 2 }), report.Incomplete, "has 3 of 4 machines (2 in excess) available", "being deleted"},
		"fewer in excess for the autoscaler":     {explain.KindDeployment, inExcess("5", "3"), report.Healthy, "of 5 machines in excess that it asks for, it has 2: the autoscaler may give it 3 in all", ""},
		"none wanted, and some left":             {explain.KindSet, func(f *Facts) { f.Sets[0].Spec.Replicas = 0 }, report.Incomplete, "the others are being deleted", "has none"},
		"all there, and not counted":             {explain.KindSet, func(f *Facts) { f.Sets[0].Status.AvailableReplicas = 2 }, report.Incomplete, "has not counted yet", "are being made"},
		"sets unread, some of an older template": {explain.KindDeployment, allOf(unlisted("MachineSet"), func(f *Facts) { f.Deployment.Status.UpdatedReplicas = 2 }), report.Unknown, "2 of 3 are of its newest", ""},
		"sets unread, and rolls":                 {explain.KindDeployment, allOf(unlisted("MachineSet"), func(f *Facts) { f.Deployment.Status.UpdatedReplicas = 2 }), report.Unknown, "a rollout goes on: 1 machine is", ""},
		"back at an earlier template": {explain.KindDeployment, allOf(rolls, func(f *Facts) {
			f.Deployment.Spec.Template.Spec.Class.Name = "pool-v1"
		}), report.Incomplete, "3 of 4 are of its newest", ""},
		"an old set without machines is stuck": {explain.KindDeployment, idle(v1alpha1.MachineSetReplicaFailure, "FailedCreate", "forbidden"), report.Healthy, "", "forbidden"},
		"the current set wants none and is refused": {explain.KindDeployment, allOf(setSays(v1alpha1.MachineSetReplicaFailure, "InvalidSpec", "spec.selector: required"), func(f *Facts) {
			f.Sets[0].Spec.Replicas, f.Deployment.Spec.Replicas, f.Machines = 0, 0, nil
		}), report.Healthy, "spec.selector: required", ""},
		"an invalid one is not about to be looked at": {explain.KindDeployment, allOf(deploymentSays(v1alpha1.MachineDeploymentProgressing, v1alpha1.ConditionFalse, "InvalidSpec", "spec.replicas"), func(f *Facts) {
			f.Deployment.Generation = 4
		}), report.Healthy, "spec.replicas", "has not acted"},
		"a wish while it is paused": {explain.KindDeployment, allOf(pausedPool, func(f *Facts) {
			f.Deployment.Spec.RollbackTo = &v1alpha1.RollbackConfig{Revision: 1}
		}), report.Healthy, "waits for the end of the pause", ""},
		"paused, and the sets are unread": {explain.KindDeployment, allOf(unlisted("MachineSet"), pausedPool), report.Unknown, "", "no machine of another template"},
		"a deadline that has passed": {explain.KindDeployment, allOf(rolls, deploymentSays(v1alpha1.MachineDeploymentProgressing, v1alpha1.ConditionTrue, "MachineSetUpdated", "x"), func(f *Facts) {
			f.Deployment.Spec.ProgressDeadlineSeconds = ptr.To[int32](60)
		}), report.Incomplete, "a rollout goes on", "counts as stalled"},
		"an overlap of both is said once": {explain.KindDeployment, allOf(setSays("SelectorOverlap", "SelectorOverlap", "selected by another set"), deploymentSays("SelectorOverlap", v1alpha1.ConditionTrue, "SelectorOverlap", "selected by other")), report.Healthy, "selected by other", "selected by another set"},
		"what was refused is not any more": {explain.KindSet, allOf(setSays(v1alpha1.MachineSetReplicaFailure, v1alpha1.MachineSetReasonInvalidSpec, "spec.selector: required"), func(f *Facts) {
			f.Sets[0].Status.Conditions[0].Status = v1alpha1.ConditionFalse
		}), report.Healthy, "", "spec.selector: required"},
		"another set backs off": {explain.KindDeployment, allOf(rolls, func(f *Facts) {
			f.Events = append(f.Events, backOffEvent("pool-0", 5, time.Second))
		}), report.Incomplete, "", "it waits before it makes"},
		"the newest delay counts": {explain.KindSet, allOf(lacks(1), backsOff(time.Second, "", ""), func(f *Facts) {
			f.Events = append(f.Events, backOffEvent("pool-a", 4, 15*time.Second))
		}), report.Incomplete, "5 times in a row", ""},
		"long ready, and not counted": {explain.KindSet, func(f *Facts) {
			f.Sets[0].Spec.MinReadySeconds, f.Sets[0].Status.AvailableReplicas = 10, 2
		}, report.Incomplete, "has not counted yet", "must stay ready"},
		"Terminating, though nobody deletes it": {explain.KindSet, func(f *Facts) {
			f.Machines[0].Status.CurrentStatus.Phase = v1alpha1.MachineTerminating
		}, report.Incomplete, "has 2 of 3 machines available", ""},
		"those that go are said last": {explain.KindSet, func(f *Facts) {
			for i := range f.Machines[1:] {
				f.Machines[i].DeletionTimestamp = ptr.To(ago(time.Minute))
			}
			f.Machines[2].Status.CurrentStatus.Phase = v1alpha1.MachineUnknown
		}, report.Incomplete, "has 0 of 3 machines available: Machine pool-a-3 is not Running", ""},
	} {
		t.Run(name, func(t *testing.T) { poolSays(t, Explain(facts(s.kind, s.given), now), s.verdict, s.says, s.not) })
	}
}

// poolSays checks the verdict of a report, and for a sentence that has to be there and one that must
// not be.
func poolSays(t *testing.T, got report.Report, verdict report.Verdict, says, not string) {
	t.Helper()
	var text bytes.Buffer
	if err := report.Print(&text, got); err != nil {
		t.Fatal(err)
	}
	said := strings.Join(strings.Fields(text.String()), " ")
	if got.Verdict != verdict || !strings.Contains(said, says) || not != "" && strings.Contains(said, not) {
		t.Errorf("verdict %s, want %s; %q should be said, and %q not:\n%s", got.Verdict, verdict, says, not, said)
	}
}
