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
	if unlisted := e.unlisted(); unlisted != "" {
		e.answer(Deleting, "is being deleted. It cannot be told what it waits for: "+unlisted+" cannot be read", nil)
		return
	}
	leaving := slices.DeleteFunc(slices.Clone(e.Machines), func(machine v1alpha1.Machine) bool { return !leavingPool(&machine) })
	e.troubled(leaving)
	if more := len(e.Machines) - len(leaving); more > 0 {
		e.why(Scaling, "", time.Time{}, "the deletion of %s has not begun: many are not deleted all at once", machines(more))
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
