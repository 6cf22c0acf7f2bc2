package pool

import (
	"strings"
	"testing"
	"time"

	"k8s.io/utils/ptr"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/observe/explain"
	"github.com/millwright-dev/millwright/internal/observe/explain/report"
	"github.com/millwright-dev/millwright/test/support/explained"
)

// denied is why a Machine cannot be deleted.
const denied = `deleting machine pool-a-1: admission webhook "policy" denied the request`

// cannotDelete has the first set fail to delete its Machines.
var cannotDelete = setSays(v1alpha1.MachineSetReplicaFailure, "FailedDelete", denied)

// setLeaves has the first set be deleted.
func setLeaves(f *Facts) {
	f.Sets[0].DeletionTimestamp, f.Sets[0].Finalizers = ptr.To(ago(time.Hour)), []string{v1alpha1.FinalizerMCM}
}

// goes has the deletion of a Machine begin.
func goes(i int) given {
	return func(f *Facts) {
		machine := f.Machines[i]
		machine.DeletionTimestamp, machine.Finalizers = ptr.To(ago(time.Minute)), []string{v1alpha1.FinalizerMCM}
	}
}

// TestWhatKeepsADeletionFromBeginning: what an operator reads of machines that are to go, and stay.
// None is said to wait for others if it does not.
func TestWhatKeepsADeletionFromBeginning(t *testing.T) {
	const others = "many are not deleted all at once"
	setDenied := deploymentSays(v1alpha1.MachineDeploymentReplicaFailure, v1alpha1.ConditionTrue, "MachineSetUpdateError", `deleting machine set pool-a: admission webhook "policy" denied the request`)
	wantsNone := func(f *Facts) { f.Sets[0].Spec.Replicas = 0 }
	for name, s := range map[string]struct {
		kind      string
		given     given
		verdict   report.Verdict
		cause     report.Cause
		says, not string
	}{
		"a set that cannot delete":                       {explain.KindSet, allOf(setLeaves, cannotDelete), report.Deleting, report.ReplicaFailure, "waits for 3 machines: FailedDelete: " + denied, others},
		"a set that can delete some":                     {explain.KindSet, allOf(setLeaves, cannotDelete, goes(1)), report.Deleting, report.ReplicaFailure, "the deletion of 2 machines has not begun", others},
		"a set that is about to delete":                  {explain.KindSet, setLeaves, report.Deleting, report.Scaling, "the deletion of 3 machines has not begun", others},
		"a set that deletes one after the other":         {explain.KindSet, allOf(setLeaves, goes(1)), report.Deleting, report.NotStarted, "the deletion of 2 machines has not begun: " + others, ""},
		"a set that could not delete, and does":          {explain.KindSet, allOf(setLeaves, cannotDelete, goes(0), goes(1), goes(2)), report.Deleting, report.NotStarted, "waits for 3 machines", denied},
		"a set that could not create":                    {explain.KindSet, allOf(setLeaves, setSays(v1alpha1.MachineSetReplicaFailure, "FailedCreate", "exceeded quota")), report.Deleting, report.Scaling, "has not begun", "exceeded quota"},
		"a set whose failure is over":                    {explain.KindSet, allOf(setLeaves, cannotDelete, func(f *Facts) { f.Sets[0].Status.Conditions[0].Status = v1alpha1.ConditionFalse }), report.Deleting, report.Scaling, "has not begun", denied},
		"a set whose machines may not be listed":         {explain.KindSet, allOf(setLeaves, cannotDelete, unlisted("Machine")), report.Deleting, report.ReplicaFailure, "is being deleted: FailedDelete: " + denied, "cannot be told"},
		"a deployment whose set cannot delete":           {explain.KindDeployment, allOf(deploymentLeaves(), setLeaves, cannotDelete), report.Deleting, report.ReplicaFailure, "MachineSet pool-a: FailedDelete: " + denied, others},
		"a deployment whose set may not be deleted":      {explain.KindDeployment, allOf(deploymentLeaves(), setDenied), report.Deleting, report.ReplicaFailure, "waits for 3 machines: deleting machine set pool-a: admission webhook", others},
		"a deployment whose set could not be deleted":    {explain.KindDeployment, allOf(deploymentLeaves(), deploymentSays(v1alpha1.MachineDeploymentReplicaFailure, v1alpha1.ConditionFalse, "MachineSetUpdateError", "forbidden")), report.Deleting, report.Scaling, "has not begun", "forbidden"},
		"a deployment whose empty set stays":             {explain.KindDeployment, allOf(deploymentLeaves(), setDenied, lacks(3)), report.Deleting, report.ReplicaFailure, "is being deleted: deleting machine set pool-a: admission webhook", ""},
		"a deployment that could not update in time":     {explain.KindDeployment, allOf(deploymentLeaves(), deploymentSays(v1alpha1.MachineDeploymentProgressing, v1alpha1.ConditionFalse, "MachineSetUpdateError", "forbidden")), report.Deleting, report.Scaling, "has not begun", "forbidden"},
		"a set asked about, of a deployment that leaves": {explain.KindSet, allOf(deploymentLeaves(), setDenied, setLeaves), report.Deleting, report.Scaling, "has not begun", "denied"},
		"the last old machine cannot be deleted":         {explain.KindDeployment, allOf(rolled, cannotDelete), report.Incomplete, report.ReplicaFailure, "MachineSet pool-a: FailedDelete: " + denied, ""},
		"the last old machine goes":                      {explain.KindDeployment, allOf(rolled, cannotDelete, goes(0)), report.Healthy, report.NotStarted, "has all 3 machines", denied},
		"an old set could not create what it wanted":     {explain.KindDeployment, allOf(rolled, setSays(v1alpha1.MachineSetReplicaFailure, "FailedCreate", "exceeded quota")), report.Incomplete, report.RolloutInProgress, "is still to be replaced", "exceeded quota"},
		"an old set is refused before it is empty":       {explain.KindDeployment, allOf(rolled, setSays(v1alpha1.MachineSetReplicaFailure, "InvalidSpec", "spec.selector: required")), report.Incomplete, v1alpha1.CauseInvalidSpec, "MachineSet pool-a: spec.selector: required", ""},
		"machines of an old set may not be listed":       {explain.KindDeployment, allOf(rolls, wantsNone, cannotDelete, unlisted("Machine")), report.Unknown, report.ReplicaFailure, denied, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := Explain(facts(s.kind, s.given), now)
			poolSays(t, got, s.verdict, s.says, s.not)
			explained.Answers(t, got, s.verdict, s.cause)
		})
	}
}

// TestTerminatingThoughNobodyDeletesIt: its set counts it, and makes no other.
func TestTerminatingThoughNobodyDeletesIt(t *testing.T) {
	got := Explain(facts(explain.KindSet, func(f *Facts) { f.Machines[0].Status.CurrentStatus.Phase = v1alpha1.MachineTerminating }), now)
	if p := got.Pool; p.Exist != 3 || p.Available != 2 || p.Leaving != 0 || !strings.Contains(got.Answer, "pool-a-1 is not Running") {
		t.Errorf("%+v: %s", *p, got.Answer)
	}
}
