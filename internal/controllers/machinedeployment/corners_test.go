package machinedeployment

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// TestASizeIsNotTakenForDoneBeforeAllSetsReport: as long as one of them may have machines that nobody
// counts, that the deployment was scaled has to be seen in the next pass, too.
func TestASizeIsNotTakenForDoneBeforeAllSetsReport(t *testing.T) {
	owner := newDeployment(8, rolling("1", "1"), class("b"))
	f := gather(owner, sets{setOf("a", 3, scaledFor(4, 5), unsettled), setOf("b", 1, scaledFor(4, 5))}, noon)
	for _, set := range f.all() {
		if got := refreshed(f, set).Annotations[v1alpha1.AnnotationKeyDesiredReplicas]; got != "4" {
			t.Errorf("%s says that it was scaled for %s", set.Name, got)
		}
	}
}

// TestASetThatIsScaledIsNotRefreshedBesides: the same write does both.
func TestASetThatIsScaledIsNotRefreshedBesides(t *testing.T) {
	f := gather(newDeployment(4, func(d *v1alpha1.MachineDeployment) { d.Spec.MinReadySeconds = 9 }), sets{setOf("a", 3)}, noon)
	if got := planRefresh(f, nil); len(got) != 1 {
		t.Fatalf("got %+v", got)
	}
	if got := planRefresh(f, []operation{{action: scale, set: f.current, replicas: 4}}); len(got) > 0 {
		t.Errorf("got %+v", got)
	}
}

func isFrozen(set *v1alpha1.MachineSet) {
	metav1.SetMetaDataLabel(&set.ObjectMeta, v1alpha1.LabelKeyFreeze, isTrue)
}

// TestASetThatGoesIsNotRefreshed, also if it is frozen and its deployment is to be unfrozen.
func TestASetThatGoesIsNotRefreshed(t *testing.T) {
	owner := newDeployment(3, class("b"))
	owner.Annotations = map[string]string{v1alpha1.AnnotationKeyUnfreeze: isTrue}
	f := gather(owner, sets{setOf("a", 3, isFrozen, leaving)}, noon)
	if got := planRefresh(f, nil); len(got) > 0 {
		t.Errorf("got %+v", got)
	}
}

// TestAnOldSetWithoutMachinesKeepsItsSize, also if it is frozen.
func TestAnOldSetWithoutMachinesKeepsItsSize(t *testing.T) {
	owner := newDeployment(4, rolling("1", "1"), class("c"))
	f := gather(owner, sets{setOf("a", 0, isFrozen, scaledFor(2, 3)), setOf("b", 3, scaledFor(4, 5)), setOf("c", 1, scaledFor(4, 5))}, noon)
	if got := refreshed(f, f.old[0]).Annotations[v1alpha1.AnnotationKeyDesiredReplicas]; got != "2" {
		t.Errorf("it says that it was scaled for %s", got)
	}
}

// TestTheRevisionOfADeploymentNeverGoesBack: a number that was given is not given again.
func TestTheRevisionOfADeploymentNeverGoesBack(t *testing.T) {
	owner := newDeployment(3)
	owner.Annotations = map[string]string{v1alpha1.AnnotationKeyRevision: "5"}
	f := gather(owner, sets{setOf("a", 3, ofRevision("3"))}, noon)
	if got := accounted(f).Annotations[v1alpha1.AnnotationKeyRevision]; got != "5" {
		t.Errorf("it becomes %s", got)
	}
}

// TestARolloutIsLookedAtWhenItsDeadlineIsOver, though nothing happens until then.
func TestARolloutIsLookedAtWhenItsDeadlineIsOver(t *testing.T) {
	s := newServer(newDeployment(3, class("b"), func(d *v1alpha1.MachineDeployment) { d.Spec.ProgressDeadlineSeconds = ptr.To[int32](600) }), setOf("a", 3))
	s.Target = nil
	if again := s.pass(t).RequeueAfter; again < 600*time.Second || again > 602*time.Second {
		t.Errorf("it is looked at again after %s", again)
	}
}

// TestOnesThatWereMarkedAreNotMarkedTwice: the pass ends if only some could not be.
func TestOnesThatWereMarkedAreNotMarkedTwice(t *testing.T) {
	s, refused := scaledByName(t, "m-1~"+later+",m-2~"+later), "m-1"
	s.refusedMachine(&refused)
	s.pass(t)
	if n := len(slices.DeleteFunc(slices.Clone(s.writes), func(write string) bool { return write != "patch m-2" })); n != 1 {
		t.Errorf("writes %q", s.writes)
	}
}

// TestAMachineThatChangesWhileItIsMarkedIsNoRefusal: it is tried again, and nobody is told.
func TestAMachineThatChangesWhileItIsMarkedIsNoRefusal(t *testing.T) {
	s := scaledByName(t, "m-1~"+later)
	s.refuse = func(verb string, object client.Object) error {
		if verb == "patch" && object.GetName() == "m-1" {
			return apierrors.NewConflict(v1alpha1.SchemeGroupVersion.WithResource("machines").GroupResource(), "m-1", errors.New("it was changed"))
		}
		return nil
	}
	if again := s.pass(t).RequeueAfter; again != staleCache {
		t.Errorf("it is looked at again after %s", again)
	}
	if at := conditionAt(s.deployment().Status, v1alpha1.MachineDeploymentReplicaFailure); at >= 0 || strings.Contains(strings.Join(s.lines, "\n"), reasonMarkError) {
		t.Errorf("events %q, status %+v", s.lines, s.deployment().Status)
	}
}

// TestAStatusIsOfNoGenerationUntilAllIsMarked: a set was not scaled as it was asked for.
func TestAStatusIsOfNoGenerationUntilAllIsMarked(t *testing.T) {
	f := gather(newDeployment(3), sets{setOf("a", 3)}, noon)
	f.leaveUnmarked("m-1", errMark)
	if got := nextStatus(f, nil).ObservedGeneration; got != 0 {
		t.Errorf("it is that of generation %d", got)
	}
}

// TestANewSetComesAfterAllOthers, also if nothing says what the deployment's revision was.
func TestANewSetComesAfterAllOthers(t *testing.T) {
	f := gather(newDeployment(3, class("b")), sets{setOf("a", 3, ofRevision("7"))}, noon)
	set, err := newSet(f, 3)
	must(err)
	if got := set.Annotations[v1alpha1.AnnotationKeyRevision]; got != "8" {
		t.Errorf("it is revision %s", got)
	}
	if got := templateRevision(f); got != 8 {
		t.Errorf("revision %d is said to be about to come", got)
	}
	f.deployment.Annotations = map[string]string{v1alpha1.AnnotationKeyRevision: "9"}
	if got := templateRevision(f); got != 10 {
		t.Errorf("revision %d is said to be about to come after 9", got)
	}
}
