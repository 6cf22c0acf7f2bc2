package explain

import (
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// deleting says what a set or deployment waits for that is being deleted.
func (e *poolExplainer) deleting(since time.Time) {
	e.report.Since = since
	if slices.Contains(e.object().GetFinalizers(), metav1.FinalizerOrphanDependents) {
		e.orphaning(since)
		return
	}
	failed := e.undeletable()
	if unlisted := e.unlisted(); unlisted != "" && !failed {
		e.answer(Deleting, "is being deleted. It cannot be told what it waits for: "+unlisted+" cannot be read", nil)
		return
	}
	leaving := slices.DeleteFunc(slices.Clone(e.Machines), func(machine v1alpha1.Machine) bool { return !leavingPool(&machine) })
	e.troubled(leaving)
	if more := len(e.Machines) - len(leaving); more > 0 {
		text := "the deletion of %s has not begun"
		if len(leaving) > 0 && !failed {
			text += ": many are not deleted all at once"
		}
		e.why(Scaling, "", time.Time{}, text, machines(more))
	}
	if left := len(e.Machines); left > 0 {
		e.answer(Deleting, "is being deleted, and waits for "+machines(left), e.report.Why)
		return
	}
	if e.Kind == kindDeployment {
		for i := range e.Sets {
			e.lingering(&e.Sets[i], since)
		}
	}
	what := "the deployment"
	if e.Kind == kindSet {
		what = "the set"
	}
	e.heldBy(foreign(e.object()), "", what, e.object(), since)
	e.answer(Deleting, "is being deleted", e.report.Why)
}

// undeletable says what keeps the manager from deleting what is to go; false if nothing tells of
// that.
func (e *poolExplainer) undeletable() bool {
	known := len(e.report.Why)
	for i := range e.Sets {
		e.undeleted(&e.Sets[i])
	}
	if e.Kind == kindDeployment {
		for _, condition := range e.Deployment.Status.Conditions {
			// What was said of the rollout is as old as that. What sets say, they have said.
			is := condition.Type == v1alpha1.MachineDeploymentReplicaFailure && condition.Status == v1alpha1.ConditionTrue
			if is && condition.Reason == "MachineSetUpdateError" {
				e.why(SetBlocked, "", condition.LastTransitionTime.Time, "%s", condition.Message)
			}
		}
	}
	return len(e.report.Why) > known
}

// undeleted says of a set what keeps its Machines from being deleted, if there are some whose
// deletion has not begun. What it could not create is of no interest any more.
func (e *poolExplainer) undeleted(set *v1alpha1.MachineSet) {
	if e.staying(set) {
		e.failures(set, func(reason string) bool { return reason != "FailedCreate" })
	}
}

// staying reports whether a set has Machines whose deletion has not begun.
func (e *poolExplainer) staying(set *v1alpha1.MachineSet) bool {
	if e.MachinesUnread {
		return set.Status.Replicas > 0
	}
	return slices.ContainsFunc(e.of(set), func(machine *v1alpha1.Machine) bool { return !leavingPool(machine) })
}

// orphaning explains the deletion of an object that leaves what it owns.
func (e *poolExplainer) orphaning(since time.Time) {
	what := "its machine sets"
	if e.Kind == kindSet {
		what = "its machines"
	}
	e.why(Finalizer, "", since, "the garbage collector of Kubernetes has to let go of %s first, and then of finalizer %s", what, metav1.FinalizerOrphanDependents)
	e.answer(Deleting, "is being deleted, and leaves "+what, e.report.Why)
}

// lingering says of a set without machines why it is still there.
func (e *poolExplainer) lingering(set *v1alpha1.MachineSet, since time.Time) {
	holders := foreign(set)
	if set.DeletionTimestamp == nil || len(holders) == 0 {
		e.why(Other, "", since, "its machine set %s is not gone yet", set.Name)
		return
	}
	e.heldBy(holders, e.named(set), e.named(set), set, set.DeletionTimestamp.Time)
}

// foreign are the finalizers of an object but for that of the manager.
func foreign(object metav1.Object) []string {
	return slices.DeleteFunc(slices.Clone(object.GetFinalizers()), func(f string) bool { return f == v1alpha1.FinalizerMCM })
}
