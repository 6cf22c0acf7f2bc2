package planner

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// TestASizeIsNotTakenForDoneBeforeAllSetsReport: as long as one of them may have machines that nobody
// counts, that the deployment was scaled has to be seen in the next pass, too.
func TestASizeIsNotTakenForDoneBeforeAllSetsReport(t *testing.T) {
	t.Parallel()
	owner := newDeployment(8, rolling("1", "1"), class("b"))
	f := NewFacts(owner, sets{setOf("a", 3, scaledFor(4, 5), unsettled), setOf("b", 1, scaledFor(4, 5))}, noon)
	for _, set := range f.All() {
		if got := refreshed(f, set, true).Annotations[v1alpha1.AnnotationKeyDesiredReplicas]; got != "4" {
			t.Errorf("%s says that it was scaled for %s", set.Name, got)
		}
	}
}

// TestASetThatIsScaledIsNotRefreshedBesides: the same write does both.
func TestASetThatIsScaledIsNotRefreshedBesides(t *testing.T) {
	t.Parallel()
	f := NewFacts(newDeployment(4, func(d *v1alpha1.MachineDeployment) { d.Spec.MinReadySeconds = 9 }), sets{setOf("a", 3)}, noon)
	if got := planRefresh(f, nil); len(got) != 1 {
		t.Fatalf("got %+v", got)
	}
	if got := planRefresh(f, []Operation{{Action: Scale, Set: f.Current, Replicas: 4}}); len(got) > 0 {
		t.Errorf("got %+v", got)
	}
}

func isFrozen(set *v1alpha1.MachineSet) {
	metav1.SetMetaDataLabel(&set.ObjectMeta, v1alpha1.LabelKeyFreeze, isTrue)
}

// TestASetThatGoesIsNotRefreshed, also if it is frozen and its deployment is to be unfrozen.
func TestASetThatGoesIsNotRefreshed(t *testing.T) {
	t.Parallel()
	owner := newDeployment(3, class("b"))
	owner.Annotations = map[string]string{v1alpha1.AnnotationKeyUnfreeze: isTrue}
	f := NewFacts(owner, sets{setOf("a", 3, isFrozen, leaving)}, noon)
	if got := planRefresh(f, nil); len(got) > 0 {
		t.Errorf("got %+v", got)
	}
}

// TestAnOldSetWithoutMachinesKeepsItsSize, also if it is frozen.
func TestAnOldSetWithoutMachinesKeepsItsSize(t *testing.T) {
	t.Parallel()
	owner := newDeployment(4, rolling("1", "1"), class("c"))
	f := NewFacts(owner, sets{setOf("a", 0, isFrozen, scaledFor(2, 3)), setOf("b", 3, scaledFor(4, 5)), setOf("c", 1, scaledFor(4, 5))}, noon)
	if got := refreshed(f, f.Old[0], true).Annotations[v1alpha1.AnnotationKeyDesiredReplicas]; got != "2" {
		t.Errorf("it says that it was scaled for %s", got)
	}
}

// TestTheRevisionOfADeploymentNeverGoesBack: a number that was given is not given again.
func TestTheRevisionOfADeploymentNeverGoesBack(t *testing.T) {
	t.Parallel()
	owner := newDeployment(3)
	owner.Annotations = map[string]string{v1alpha1.AnnotationKeyRevision: "5"}
	f := NewFacts(owner, sets{setOf("a", 3, ofRevision("3"))}, noon)
	if got := Annotated(f).Annotations[v1alpha1.AnnotationKeyRevision]; got != "5" {
		t.Errorf("it becomes %s", got)
	}
}

// TestANewSetComesAfterAllOthers, also if nothing says what the deployment's revision was.
func TestANewSetComesAfterAllOthers(t *testing.T) {
	t.Parallel()
	f := NewFacts(newDeployment(3, class("b")), sets{setOf("a", 3, ofRevision("7"))}, noon)
	set := NewSet(f, 3)
	if got := set.Annotations[v1alpha1.AnnotationKeyRevision]; got != "8" {
		t.Errorf("it is revision %s", got)
	}
	if got := TemplateRevision(f); got != 8 {
		t.Errorf("revision %d is said to be about to come", got)
	}
	f.Deployment.Annotations = map[string]string{v1alpha1.AnnotationKeyRevision: "9"}
	if got := TemplateRevision(f); got != 10 {
		t.Errorf("revision %d is said to be about to come after 9", got)
	}
}
