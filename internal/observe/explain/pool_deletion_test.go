package explain

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"k8s.io/utils/ptr"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// denied is why a Machine cannot be deleted.
const denied = `deleting machine pool-a-1: admission webhook "policy" denied the request`

// cannotDelete has the first set fail to delete its Machines.
var cannotDelete = setSays(v1alpha1.MachineSetReplicaFailure, "FailedDelete", denied)

// setLeaves has the first set be deleted.
func setLeaves(f *PoolFacts) {
	f.Sets[0].DeletionTimestamp, f.Sets[0].Finalizers = ptr.To(ago(time.Hour)), []string{v1alpha1.FinalizerMCM}
}

// goes has the deletion of a Machine begin.
func goes(i int) givenPool {
	return func(f *PoolFacts) {
		machine := &f.Machines[i]
		machine.DeletionTimestamp, machine.Finalizers = ptr.To(ago(time.Minute)), []string{v1alpha1.FinalizerMCM}
	}
}

// TestWhatKeepsADeletionFromBeginning: what an operator reads of machines that are to go, and stay.
// None is said to wait for others if it does not.
func TestWhatKeepsADeletionFromBeginning(t *testing.T) {
	const others = "many are not deleted all at once"
	setDenied := deploymentSays(v1alpha1.MachineDeploymentReplicaFailure, v1alpha1.ConditionTrue, "MachineSetUpdateError", `deleting machine set pool-a: admission webhook "policy" denied the request`)
	wantsNone := func(f *PoolFacts) { f.Sets[0].Spec.Replicas = 0 }
	for name, s := range map[string]struct {
		kind      string
		given     givenPool
		verdict   Verdict
		cause     Cause
		says, not string
	}{
		"a set that cannot delete":                       {kindSet, allOf(setLeaves, cannotDelete), Deleting, SetBlocked, "waits for 3 machines: FailedDelete: " + denied, others},
		"a set that can delete some":                     {kindSet, allOf(setLeaves, cannotDelete, goes(1)), Deleting, SetBlocked, "the deletion of 2 machines has not begun", others},
		"a set that is about to delete":                  {kindSet, setLeaves, Deleting, Scaling, "the deletion of 3 machines has not begun", others},
		"a set that deletes one after the other":         {kindSet, allOf(setLeaves, goes(1)), Deleting, NotLookedAt, "the deletion of 2 machines has not begun: " + others, ""},
		"a set that could not delete, and does":          {kindSet, allOf(setLeaves, cannotDelete, goes(0), goes(1), goes(2)), Deleting, NotLookedAt, "waits for 3 machines", denied},
		"a set that could not create":                    {kindSet, allOf(setLeaves, setSays(v1alpha1.MachineSetReplicaFailure, "FailedCreate", "exceeded quota")), Deleting, Scaling, "has not begun", "exceeded quota"},
		"a set whose failure is over":                    {kindSet, allOf(setLeaves, cannotDelete, func(f *PoolFacts) { f.Sets[0].Status.Conditions[0].Status = v1alpha1.ConditionFalse }), Deleting, Scaling, "has not begun", denied},
		"a set whose machines may not be listed":         {kindSet, allOf(setLeaves, cannotDelete, unlisted("Machine")), Deleting, SetBlocked, "is being deleted: FailedDelete: " + denied, "cannot be told"},
		"a deployment whose set cannot delete":           {kindDeployment, allOf(deploymentLeaves(), setLeaves, cannotDelete), Deleting, SetBlocked, "MachineSet pool-a: FailedDelete: " + denied, others},
		"a deployment whose set may not be deleted":      {kindDeployment, allOf(deploymentLeaves(), setDenied), Deleting, SetBlocked, "waits for 3 machines: deleting machine set pool-a: admission webhook", others},
		"a deployment whose set could not be deleted":    {kindDeployment, allOf(deploymentLeaves(), deploymentSays(v1alpha1.MachineDeploymentReplicaFailure, v1alpha1.ConditionFalse, "MachineSetUpdateError", "forbidden")), Deleting, Scaling, "has not begun", "forbidden"},
		"a deployment whose empty set stays":             {kindDeployment, allOf(deploymentLeaves(), setDenied, lacks(3)), Deleting, SetBlocked, "is being deleted: deleting machine set pool-a: admission webhook", ""},
		"a deployment that could not update in time":     {kindDeployment, allOf(deploymentLeaves(), deploymentSays(v1alpha1.MachineDeploymentProgressing, v1alpha1.ConditionFalse, "MachineSetUpdateError", "forbidden")), Deleting, Scaling, "has not begun", "forbidden"},
		"a set asked about, of a deployment that leaves": {kindSet, allOf(deploymentLeaves(), setDenied, setLeaves), Deleting, Scaling, "has not begun", "denied"},
		"the last old machine cannot be deleted":         {kindDeployment, allOf(rolled, cannotDelete), Incomplete, SetBlocked, "MachineSet pool-a: FailedDelete: " + denied, ""},
		"the last old machine goes":                      {kindDeployment, allOf(rolled, cannotDelete, goes(0)), Healthy, NotLookedAt, "has all 3 machines", denied},
		"an old set could not create what it wanted":     {kindDeployment, allOf(rolled, setSays(v1alpha1.MachineSetReplicaFailure, "FailedCreate", "exceeded quota")), Incomplete, Rollout, "is still to be replaced", "exceeded quota"},
		"an old set is refused before it is empty":       {kindDeployment, allOf(rolled, setSays(v1alpha1.MachineSetReplicaFailure, "InvalidSpec", "spec.selector: required")), Incomplete, InvalidSpec, "MachineSet pool-a: spec.selector: required", ""},
		"machines of an old set may not be listed":       {kindDeployment, allOf(rolls, wantsNone, cannotDelete, unlisted("Machine")), Unknown, SetBlocked, denied, ""},
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
			first := Cause("")
			if len(report.Why) > 0 {
				first = report.Why[0].Cause
			}
			if first != s.cause {
				t.Errorf("the first finding is %q, want %q", first, s.cause)
			}
		})
	}
}

// TestABackOffAmongSimilarEvents: client-go combines events that come often, and says so before
// what the newest says.
func TestABackOffAmongSimilarEvents(t *testing.T) {
	for name, last := range map[string]string{"no reason": "", "a reason": ". The last was pool-a-z: Machine pool-a-z failed to join the cluster in 20 minutes."} {
		t.Run(name, func(t *testing.T) {
			said := func(prefix string) string {
				report := ExplainPool(pool(kindSet, allOf(backsOff(30*time.Second, last), lacks(1), func(f *PoolFacts) {
					f.Events[0].Message = prefix + f.Events[0].Message
				})), now)
				return report.Answer
			}
			if got, want := said(combined), said(""); got != want || !strings.Contains(got, "5 times in a row") {
				t.Errorf("said:\n%s\nwant:\n%s", got, want)
			}
		})
	}
}

// TestTerminatingThoughNobodyDeletesIt: its set counts it, and makes no other.
func TestTerminatingThoughNobodyDeletesIt(t *testing.T) {
	report := ExplainPool(pool(kindSet, func(f *PoolFacts) { f.Machines[0].Status.CurrentStatus.Phase = v1alpha1.MachineTerminating }), now)
	if p := report.Pool; p.Exist != 3 || p.Available != 2 || p.Leaving != 0 || !strings.Contains(report.Answer, "pool-a-1 is not Running") {
		t.Errorf("%+v: %s", *p, report.Answer)
	}
}
