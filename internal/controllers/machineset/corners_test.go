package machineset

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/machineset/planner"
	"github.com/millwright-dev/millwright/internal/reconcile/expectations"
)

// TestANewProcessKnowsThatASetIsOrphaned: it learns so from the list with which its cache begins,
// and the finalizer is gone before its first pass.
func TestANewProcessKnowsThatASetIsOrphaned(t *testing.T) {
	s := newServer(newSet(1, orphaned), machine("a"))
	must(s.live.Delete(testContext, s.set()))
	c := s.newController()
	c.orphaned.Handler().Create(testContext, event.CreateEvent{Object: s.set()}, nil)
	s.finish() // the garbage collector did not know the machine
	for range 3 {
		pass(t, c)
		s.catchUp()
	}
	if m := s.all()["a"]; m == nil || !m.DeletionTimestamp.IsZero() || len(m.OwnerReferences) > 0 {
		t.Errorf("the machine is not let go of: %+v", m)
	}
}

// TestAReleaseKeepsAnOwnerThatCameJustBefore: the list of owners is replaced as a whole, so the
// write has to fail if the cache does not show all of them yet.
func TestAReleaseKeepsAnOwnerThatCameJustBefore(t *testing.T) {
	theirs := metav1.OwnerReference{APIVersion: "example.com/v1", Kind: "Rack", Name: "r1", UID: "uid-of-r1"}
	s := newServer(newSet(0), machine("a", unlabelled))
	m := s.all()["a"]
	m.OwnerReferences = append(m.OwnerReferences, theirs)
	must(s.live.Update(testContext, m))
	c := s.newController()
	lookAgain(t, s, c)
	s.catchUp()
	pass(t, c)
	if diff := cmp.Diff([]metav1.OwnerReference{theirs}, s.all()["a"].OwnerReferences); diff != "" {
		t.Errorf("owners: want - got +\n%s", diff)
	}
}

// TestASetThatIsNamedIsHeardOf: many sets that overlap do not wake each other, but those do hear
// that a set goes which name it.
func TestASetThatIsNamedIsHeardOf(t *testing.T) {
	s := newServer(newSet(0))
	c := s.newController()
	for i := range 8 {
		must(s.live.Create(t.Context(), namedSet(fmt.Sprintf("set-%02d", i))))
	}
	pass(t, c)
	gone := namedSet("set-00")
	must(s.live.Delete(t.Context(), gone))
	if woken := c.overlappingSets(t.Context(), gone); !slices.Contains(woken, request) {
		t.Errorf("%v are woken, without the set that says %q", woken, overlapOf(s.set()))
	}
}

// TestAComplaintIsMadeOnceThoughNumbersChange: an event for each change of a status would be one for
// each machine that comes or goes.
func TestAComplaintIsMadeOnceThoughNumbersChange(t *testing.T) {
	s := newServer(newSet(0), namedSet("other"), machine("a"))
	c := s.newController()
	for range 3 {
		pass(t, c)
		s.scale(s.set().Spec.Replicas + 1)
		s.catchUp()
	}
	said := slices.DeleteFunc(slices.Clone(s.events.lines), func(line string) bool { return !strings.HasPrefix(line, "SelectorOverlap") })
	if len(said) != 1 {
		t.Errorf("events %q", s.events.lines)
	}
}

// TestMachinesOfOneRoundFailOneByOne: they were made in different seconds, and still count once.
func TestMachinesOfOneRoundFailOneByOne(t *testing.T) {
	failed := func(m *v1alpha1.Machine) {
		m.Status.CurrentStatus.Phase, m.Status.LastOperation.Type = v1alpha1.MachineFailed, v1alpha1.MachineOperationCreate
	}
	f := planner.Facts{Set: newSet(2), Owned: []*v1alpha1.Machine{machine("a", failed, age(2*time.Minute)), machine("b", failed, age(time.Minute))}, Now: noon}
	var known failures
	for _, m := range f.Owned {
		known.count(f, contents{}, []planner.Operation{{Action: planner.Delete, Machine: m}})
		if known.rounds != 1 {
			t.Errorf("after %s: %d rounds", m.Name, known.rounds)
		}
	}
}

// TestNothingIsReportedAfterAnAdoptionThatMetAnother: what was counted as the set's own is not, also
// if the set would be frozen for it.
func TestNothingIsReportedAfterAnAdoptionThatMetAnother(t *testing.T) {
	s := newServer(newSet(0), machine("lost", stray), machine("mine"))
	s.overshoot = &Overshoot{Up: 1, Down: 1}
	s.answer = func(verb string, object client.Object) (error, bool) {
		if verb == "patch" && object.GetName() == "lost" {
			return apierrors.NewConflict(resource, "lost", errors.New("changed")), false
		}
		return nil, false
	}
	c := s.newController()
	result, err := c.Reconcile(t.Context(), ctrl.Request(request))
	if err != nil || result.RequeueAfter != expectations.StaleCache {
		t.Errorf("got %+v and the error %v", result, err)
	}
	if status := s.set().Status; status.ObservedGeneration != 0 || s.activeCount() != 2 {
		t.Errorf("%d machines are left, and the status says %+v", s.activeCount(), status)
	}
}
