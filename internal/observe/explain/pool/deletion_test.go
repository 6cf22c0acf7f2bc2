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

// denied is the error for a Machine that cannot be deleted.
const denied = `deleting machine pool-a-1: admission webhook "policy" denied the request`

// deletionFails sets the condition that the first set cannot delete its Machines.
var deletionFails = setCondition(v1alpha1.MachineSetReplicaFailure, "FailedDelete", denied)

// setIsDeleting sets the deletion of the first set.
func setIsDeleting(f *Facts) {
	f.Sets[0].DeletionTimestamp, f.Sets[0].Finalizers = ptr.To(ago(time.Hour)), []string{v1alpha1.FinalizerMCM}
}

// machineIsDeleting sets the deletion of a Machine.
func machineIsDeleting(i int) given {
	return func(f *Facts) {
		machine := f.Machines[i]
		machine.DeletionTimestamp, machine.Finalizers = ptr.To(ago(time.Minute)), []string{v1alpha1.FinalizerMCM}
	}
}

// TestExplain_DeletionIsBlocked checks what is reported about Machines whose deletion has not started, and
// that no Machine is reported to wait for others if it does not.
func TestExplain_DeletionIsBlocked(t *testing.T) {
	const others = "large numbers are deleted in batches"
	setDenied := deploymentCondition(v1alpha1.MachineDeploymentReplicaFailure, v1alpha1.ConditionTrue, "MachineSetUpdateError", `deleting machine set pool-a: admission webhook "policy" denied the request`)
	noReplicas := func(f *Facts) { f.Sets[0].Spec.Replicas = 0 }
	for name, s := range map[string]struct {
		kind           string
		given          given
		verdict        report.Verdict
		cause          report.Cause
		want, unwanted string
	}{
		"a set that cannot delete":                    {explain.KindSet, allOf(setIsDeleting, deletionFails), report.Deleting, report.ReplicaFailure, "waits for 3 machines: FailedDelete: " + denied, others},
		"a set that can delete some":                  {explain.KindSet, allOf(setIsDeleting, deletionFails, machineIsDeleting(1)), report.Deleting, report.ReplicaFailure, "the deletion of 2 machines has not started", others},
		"a set that is about to delete":               {explain.KindSet, setIsDeleting, report.Deleting, report.Scaling, "the deletion of 3 machines has not started", others},
		"a set that deletes in batches":               {explain.KindSet, allOf(setIsDeleting, machineIsDeleting(1)), report.Deleting, report.NotStarted, "the deletion of 2 machines has not started; " + others, ""},
		"a set whose deletions succeed later":         {explain.KindSet, allOf(setIsDeleting, deletionFails, machineIsDeleting(0), machineIsDeleting(1), machineIsDeleting(2)), report.Deleting, report.NotStarted, "waits for 3 machines", denied},
		"a set that could not create":                 {explain.KindSet, allOf(setIsDeleting, setCondition(v1alpha1.MachineSetReplicaFailure, "FailedCreate", "exceeded quota")), report.Deleting, report.Scaling, "has not started", "exceeded quota"},
		"a set whose failure is resolved":             {explain.KindSet, allOf(setIsDeleting, deletionFails, func(f *Facts) { f.Sets[0].Status.Conditions[0].Status = v1alpha1.ConditionFalse }), report.Deleting, report.Scaling, "has not started", denied},
		"a set whose machines cannot be listed":       {explain.KindSet, allOf(setIsDeleting, deletionFails, unlisted("Machine")), report.Deleting, report.ReplicaFailure, "is being deleted: FailedDelete: " + denied, "is unknown"},
		"a deployment whose set cannot delete":        {explain.KindDeployment, allOf(deploymentIsDeleting(), setIsDeleting, deletionFails), report.Deleting, report.ReplicaFailure, "MachineSet pool-a: FailedDelete: " + denied, others},
		"a deployment whose set cannot be deleted":    {explain.KindDeployment, allOf(deploymentIsDeleting(), setDenied), report.Deleting, report.ReplicaFailure, "waits for 3 machines: deleting machine set pool-a: admission webhook", others},
		"a deployment whose set could not be deleted": {explain.KindDeployment, allOf(deploymentIsDeleting(), deploymentCondition(v1alpha1.MachineDeploymentReplicaFailure, v1alpha1.ConditionFalse, "MachineSetUpdateError", "forbidden")), report.Deleting, report.Scaling, "has not started", "forbidden"},
		"a deployment whose empty set remains":        {explain.KindDeployment, allOf(deploymentIsDeleting(), setDenied, withoutMachines(3)), report.Deleting, report.ReplicaFailure, "is being deleted: deleting machine set pool-a: admission webhook", ""},
		"a deployment that could not update in time":  {explain.KindDeployment, allOf(deploymentIsDeleting(), deploymentCondition(v1alpha1.MachineDeploymentProgressing, v1alpha1.ConditionFalse, "MachineSetUpdateError", "forbidden")), report.Deleting, report.Scaling, "has not started", "forbidden"},
		"a set of a deployment that is being deleted": {explain.KindSet, allOf(deploymentIsDeleting(), setDenied, setIsDeleting), report.Deleting, report.Scaling, "has not started", "denied"},
		"the last old machine cannot be deleted":      {explain.KindDeployment, allOf(rolled, deletionFails), report.Incomplete, report.ReplicaFailure, "MachineSet pool-a: FailedDelete: " + denied, ""},
		"the last old machine is being deleted":       {explain.KindDeployment, allOf(rolled, deletionFails, machineIsDeleting(0)), report.Healthy, report.NotStarted, "has all 3 desired machines", denied},
		"an old set could not create machines":        {explain.KindDeployment, allOf(rolled, setCondition(v1alpha1.MachineSetReplicaFailure, "FailedCreate", "exceeded quota")), report.Incomplete, report.RolloutInProgress, "is still to be replaced", "exceeded quota"},
		"an old set is invalid before it is empty":    {explain.KindDeployment, allOf(rolled, setCondition(v1alpha1.MachineSetReplicaFailure, "InvalidSpec", "spec.selector: required")), report.Incomplete, v1alpha1.CauseInvalidSpec, "MachineSet pool-a: spec.selector: required", ""},
		"machines of an old set cannot be listed":     {explain.KindDeployment, allOf(rolls, noReplicas, deletionFails, unlisted("Machine")), report.Unknown, report.ReplicaFailure, denied, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := Explain(facts(s.kind, s.given), now)
			checkText(t, got, s.verdict, s.want, s.unwanted)
			explained.Finds(t, got, s.verdict, s.cause)
		})
	}
}

// TestMachineSet_TerminatingWithoutDeletion checks a Machine in phase Terminating that is not being deleted: its set
// counts it, and does not create another one.
func TestMachineSet_TerminatingWithoutDeletion(t *testing.T) {
	got := Explain(facts(explain.KindSet, func(f *Facts) { f.Machines[0].Status.CurrentStatus.Phase = v1alpha1.MachineTerminating }), now)
	if p := got.Pool; p.Exist != 3 || p.Available != 2 || p.Leaving != 0 || !strings.Contains(got.Summary, "pool-a-1 is not Running") {
		t.Errorf("%+v: %s", *p, got.Summary)
	}
}
