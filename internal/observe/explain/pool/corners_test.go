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

// idle adds an old set without Machines and desired replicas, and with the given condition.
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

// inExcess sets one replica for pods, the given number of machines in excess, and the autoscaler's maximum if it is
// not empty.
func inExcess(excess, most string) given {
	return func(f *Facts) {
		f.Deployment.Spec.Replicas, f.Deployment.Spec.ExcessReplicas = 1, ptr.To(intstr.Parse(excess))
		if most != "" {
			metav1.SetMetaDataAnnotation(&f.Deployment.ObjectMeta, v1alpha1.AnnotationKeyAutoscalerMaxSize, most)
		}
	}
}

// TestExplain_Sentences checks for sentences that the output must contain and must not contain.
func TestExplain_Sentences(t *testing.T) {
	for name, s := range map[string]struct {
		kind           string
		given          given
		verdict        report.Verdict
		want, unwanted string
	}{
		"preserved, within the desired number": {explain.KindSet, preserves(0), report.Healthy, "has all 3 desired machines", "preserved"},
		"preserved, but others are surplus":    {explain.KindSet, allOf(preserves(0), func(f *Facts) { f.Sets[0].Spec.Replicas = 2 }), report.Incomplete, "3 machines exist, and 2 are desired; the others are being deleted", "preserved"},
		"preserved, but being deleted": {explain.KindSet, allOf(preserves(0), func(f *Facts) {
			f.Sets[0].Spec.Replicas, f.Machines[0].DeletionTimestamp = 1, ptr.To(ago(time.Minute))
		}), report.Incomplete, "", "preserved"},
		"some in excess":                         {explain.KindDeployment, inExcess("2", ""), report.Healthy, "has all desired machines: 1 machine for pods and 2 in excess", "being deleted"},
		"too few in excess":                      {explain.KindDeployment, allOf(inExcess("2", ""), func(f *Facts) { f.Deployment.Spec.Replicas = 2 }), report.Incomplete, "has 3 of 4 machines (2 in excess) available", "being deleted"},
		"fewer in excess for the autoscaler":     {explain.KindDeployment, inExcess("5", "3"), report.Healthy, "2 of 5 requested machines in excess exist, because the autoscaler's maximum is 3", ""},
		"none desired, and some left":            {explain.KindSet, func(f *Facts) { f.Sets[0].Spec.Replicas = 0 }, report.Incomplete, "the others are being deleted", "has none"},
		"all running, but not counted":           {explain.KindSet, func(f *Facts) { f.Sets[0].Status.AvailableReplicas = 2 }, report.Incomplete, "has not counted them yet", "are being created"},
		"sets unread, some of an older template": {explain.KindDeployment, allOf(unlisted("MachineSet"), func(f *Facts) { f.Deployment.Status.UpdatedReplicas = 2 }), report.Unknown, "2 of 3 have the latest template", ""},
		"sets unread, rollout in progress":       {explain.KindDeployment, allOf(unlisted("MachineSet"), func(f *Facts) { f.Deployment.Status.UpdatedReplicas = 2 }), report.Unknown, "a rollout is in progress: 1 machine is", ""},
		"back at an earlier template": {explain.KindDeployment, allOf(rolls, func(f *Facts) {
			f.Deployment.Spec.Template.Spec.Class.Name = "pool-v1"
		}), report.Incomplete, "3 of 4 have the latest template", ""},
		"an old set without machines fails": {explain.KindDeployment, idle(v1alpha1.MachineSetReplicaFailure, "FailedCreate", "forbidden"), report.Healthy, "", "forbidden"},
		"the current set has no replicas and is invalid": {explain.KindDeployment, allOf(setCondition(v1alpha1.MachineSetReplicaFailure, "InvalidSpec", "spec.selector: required"), func(f *Facts) {
			f.Sets[0].Spec.Replicas, f.Deployment.Spec.Replicas, f.Machines = 0, 0, nil
		}), report.Healthy, "spec.selector: required", ""},
		"an invalid one is not pending": {explain.KindDeployment, allOf(deploymentCondition(v1alpha1.MachineDeploymentProgressing, v1alpha1.ConditionFalse, "InvalidSpec", "spec.replicas"), func(f *Facts) {
			f.Deployment.Generation = 4
		}), report.Healthy, "spec.replicas", "has not processed"},
		"a rollback while it is paused": {explain.KindDeployment, allOf(pausedPool, func(f *Facts) {
			f.Deployment.Spec.RollbackTo = &v1alpha1.RollbackConfig{Revision: 1}
		}), report.Healthy, "waits until the deployment is resumed", ""},
		"paused, and the sets are unread": {explain.KindDeployment, allOf(unlisted("MachineSet"), pausedPool), report.Unknown, "", "machines with another template"},
		"an exceeded deadline": {explain.KindDeployment, allOf(rolls, deploymentCondition(v1alpha1.MachineDeploymentProgressing, v1alpha1.ConditionTrue, "MachineSetUpdated", "x"), func(f *Facts) {
			f.Deployment.Spec.ProgressDeadlineSeconds = ptr.To[int32](60)
		}), report.Incomplete, "a rollout is in progress", "exceeds its progress deadline"},
		"an overlap of both is reported once": {explain.KindDeployment, allOf(setCondition("SelectorOverlap", "SelectorOverlap", "selected by another set"), deploymentCondition("SelectorOverlap", v1alpha1.ConditionTrue, "SelectorOverlap", "selected by other")), report.Healthy, "selected by other", "selected by another set"},
		"a corrected spec": {explain.KindSet, allOf(setCondition(v1alpha1.MachineSetReplicaFailure, v1alpha1.MachineSetReasonInvalidSpec, "spec.selector: required"), func(f *Facts) {
			f.Sets[0].Status.Conditions[0].Status = v1alpha1.ConditionFalse
		}), report.Healthy, "", "spec.selector: required"},
		"another set backs off": {explain.KindDeployment, allOf(rolls, func(f *Facts) {
			f.Events = append(f.Events, backOffEvent("pool-0", 5, time.Second))
		}), report.Incomplete, "", "it waits before it creates"},
		"the latest delay is reported": {explain.KindSet, allOf(withoutMachines(1), backsOff(time.Second, "", ""), func(f *Facts) {
			f.Events = append(f.Events, backOffEvent("pool-a", 4, 15*time.Second))
		}), report.Incomplete, "5 times in a row", ""},
		"ready for a long time, but not counted": {explain.KindSet, func(f *Facts) {
			f.Sets[0].Spec.MinReadySeconds, f.Sets[0].Status.AvailableReplicas = 10, 2
		}, report.Incomplete, "has not counted them yet", "must stay ready"},
		"Terminating, but not being deleted": {explain.KindSet, func(f *Facts) {
			f.Machines[0].Status.CurrentStatus.Phase = v1alpha1.MachineTerminating
		}, report.Incomplete, "has 2 of 3 machines available", ""},
		"machines being deleted are reported last": {explain.KindSet, func(f *Facts) {
			for i := range f.Machines[1:] {
				f.Machines[i].DeletionTimestamp = ptr.To(ago(time.Minute))
			}
			f.Machines[2].Status.CurrentStatus.Phase = v1alpha1.MachineUnknown
		}, report.Incomplete, "has 0 of 3 machines available: Machine pool-a-3 is not Running", ""},
	} {
		t.Run(name, func(t *testing.T) { checkText(t, Explain(facts(s.kind, s.given), now), s.verdict, s.want, s.unwanted) })
	}
}

// checkText checks the verdict of a report, a text that it must contain, and a text that it must not contain.
func checkText(t *testing.T, got report.Report, verdict report.Verdict, want, unwanted string) {
	t.Helper()
	var text bytes.Buffer
	if err := report.Print(&text, got); err != nil {
		t.Fatal(err)
	}
	output := strings.Join(strings.Fields(text.String()), " ")
	if got.Verdict != verdict || !strings.Contains(output, want) || unwanted != "" && strings.Contains(output, unwanted) {
		t.Errorf("verdict %s, want %s; the text must contain %q, and must not contain %q:\n%s", got.Verdict, verdict, want, unwanted, output)
	}
}
