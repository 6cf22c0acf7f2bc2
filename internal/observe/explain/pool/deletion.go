package pool

import (
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/observe/explain/report"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
)

// deleting says what a set or deployment waits for that is being deleted.
func (e *explainer) deleting() {
	e.Since = e.object().GetDeletionTimestamp().Time
	if slices.Contains(e.object().GetFinalizers(), metav1.FinalizerOrphanDependents) {
		e.orphaning()
		return
	}
	failed := e.undeletable()
	if unlisted := e.unlisted(); unlisted != "" && !failed {
		e.Conclude(report.Deleting, "is being deleted. It cannot be told what it waits for: "+unlisted+" cannot be read", nil)
		return
	}
	leaves := slices.DeleteFunc(slices.Clone(e.Machines), func(machine v1alpha1.Machine) bool { return !leaving(&machine) })
	e.troubled(leaves)
	if more := len(e.Machines) - len(leaves); more > 0 {
		others := ""
		if len(leaves) > 0 && !failed {
			others = ": many are not deleted all at once"
		}
		e.Why(notDeleted, "", time.Time{}, "{count}", messages.Machines(more), "{others}", others)
	}
	if left := len(e.Machines); left > 0 {
		e.Conclude(report.Deleting, "is being deleted, and waits for "+messages.Machines(left), e.Report.Why)
		return
	}
	what := "the set"
	if e.Kind == Deployment {
		what = "the deployment"
		for i := range e.Sets {
			e.remaining(&e.Sets[i])
		}
	}
	e.Held(foreign(e.object()), "", what, e.object())
	e.Conclude(report.Deleting, "is being deleted", e.Report.Why)
}

// undeletable says what keeps the manager from deleting what is to go; false if nothing tells of
// that. What a deployment says of the rollout is as old as that, and what sets say they have said.
func (e *explainer) undeletable() bool {
	known := len(e.Report.Why)
	for i := range e.Sets {
		e.undeleted(&e.Sets[i])
	}
	if e.Kind == Deployment {
		for _, condition := range e.Deployment.Status.Conditions {
			is := condition.Type == v1alpha1.MachineDeploymentReplicaFailure && condition.Status == v1alpha1.ConditionTrue
			if is && condition.Reason == "MachineSetUpdateError" {
				e.Why(byReason[condition.Reason], "", condition.LastTransitionTime.Time, "{text}", condition.Message)
			}
		}
	}
	return len(e.Report.Why) > known
}

// undeleted says of a set what keeps its Machines from being deleted, if there are some whose
// deletion has not begun. What it could not create is of no interest any more.
func (e *explainer) undeleted(set *v1alpha1.MachineSet) {
	if e.staying(set) {
		e.failures(set, "FailedCreate")
	}
}

// staying reports whether a set has Machines whose deletion has not begun.
func (e *explainer) staying(set *v1alpha1.MachineSet) bool {
	if e.MachinesUnread {
		return set.Status.Replicas > 0
	}
	return slices.ContainsFunc(e.of(set), func(machine *v1alpha1.Machine) bool { return !leaving(machine) })
}

// orphaning explains the deletion of an object that leaves what it owns.
func (e *explainer) orphaning() {
	what := "its machine sets"
	if e.Kind == Set {
		what = "its machines"
	}
	e.Why(orphaning, "", e.Since, "{what}", what, "{finalizer}", metav1.FinalizerOrphanDependents)
	e.Conclude(report.Deleting, "is being deleted, and leaves "+what, e.Report.Why)
}

// remaining says of a set without machines why it is still there.
func (e *explainer) remaining(set *v1alpha1.MachineSet) {
	holders := foreign(set)
	if set.DeletionTimestamp == nil || len(holders) == 0 {
		e.Why(setRemains, "", e.Since, "{set}", set.Name)
		return
	}
	e.Held(holders, e.named(set), e.named(set), set)
}

// foreign are the finalizers of an object but for that of the manager.
func foreign(object metav1.Object) []string {
	return slices.DeleteFunc(slices.Clone(object.GetFinalizers()), func(f string) bool { return f == v1alpha1.FinalizerMCM })
}
