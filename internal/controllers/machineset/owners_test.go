package machineset

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/internal/reconcile/expectations"
)

// TestMachineSet_ReleaseKeepsConcurrentOwner checks that a release fails if the cache lacks an owner, since it
// replaces the list of owners.
func TestMachineSet_ReleaseKeepsConcurrentOwner(t *testing.T) {
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

// TestMachineSet_ConflictingAdoptionStopsPass checks that a conflicting adoption stops the pass without an
// event, even if the set would be frozen because of the Machine.
func TestMachineSet_ConflictingAdoptionStopsPass(t *testing.T) {
	s := newServer(newSet(0), machine("lost", ownerless), machine("mine"))
	s.overshoot = &Overshoot{Up: 1, Down: 1}
	s.respond = func(verb string, object client.Object) (error, bool) {
		if verb == "patch" && object.GetName() == "lost" {
			return apierrors.NewConflict(resource, "lost", errors.New("changed")), false
		}
		return nil, false
	}
	c := s.newController()
	result, err := c.Reconcile(t.Context(), ctrl.Request(request))
	if err != nil || result.RequeueAfter != expectations.StaleCache {
		t.Errorf("result %+v, error %v", result, err)
	}
	if status := s.set().Status; status.ObservedGeneration != 0 || s.activeCount() != 2 {
		t.Errorf("%d machines remain, status %+v", s.activeCount(), status)
	}
}
