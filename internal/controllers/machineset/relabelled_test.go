package machineset

import (
	"errors"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// relabels is a webhook that changes labels of new Machines.
func relabels(labels map[string]string) func(string, client.Object) {
	return func(verb string, object client.Object) {
		if verb == "create" {
			object.SetLabels(labels)
		}
	}
}

// againTooEarly has a pass made before the time of the next attempt, which says the same and makes nothing, and
// then lets that time pass.
func (s *server) againTooEarly(t *testing.T, c *Controller) {
	t.Helper()
	before := len(s.all())
	if _, err := c.Reconcile(t.Context(), request); !errors.Is(err, errCreate) || len(s.all()) != before {
		t.Errorf("the next pass makes %d, and says %v", len(s.all())-before, err)
	}
	s.catchUp()
	s.clock.SetTime(s.clock.Now().Add(time.Hour))
}

// TestMachinesThatAreRelabelledAreNotMadeWithoutEnd: the set would let go of each, and make another
// in its place. It makes one for each time that it tries, which is less and less often, deletes that, and says why.
func TestMachinesThatAreRelabelledAreNotMadeWithoutEnd(t *testing.T) {
	s := newServer(newSet(4))
	s.overshoot = &Overshoot{Up: 2, Down: 1}
	s.happens = relabels(map[string]string{"name": "other"})
	c := s.newController()
	const tries = 3
	for range tries {
		if _, err := c.Reconcile(t.Context(), request); !errors.Is(err, errCreate) {
			t.Fatalf("got the error %v, so it is tried again at once", err)
		}
		s.catchUp()
		s.againTooEarly(t, c)
	}
	if all, active := len(s.all()), s.activeCount(); all != tries || active != 0 {
		t.Errorf("%d machines were made in %d passes, and %d of them stay", all, tries, active)
	}
	const why = `creating machines: the created machine has the labels "name=other", which the selector "name=pool" does not match`
	conditions := s.set().Status.Conditions
	if len(conditions) != 1 || conditions[0].Reason != v1alpha1.MachineSetReasonFailedCreate || conditions[0].Message != why {
		t.Errorf("conditions: %+v", conditions)
	}
	if told := strings.Join(s.events.lines, "\n"); strings.Contains(told, "SuccessfulCreate") || !strings.Contains(told, "FailedCreate: Error creating: ") {
		t.Errorf("events: %q", s.events.lines)
	}

	s.happens = nil
	s.clock.SetTime(s.clock.Now().Add(time.Hour))
	pass(t, c)
	s.catchUp()
	pass(t, c)
	if n, conditions := s.activeCount(), s.set().Status.Conditions; n != 4 || len(conditions) > 0 {
		t.Errorf("when nothing changes them any more, there are %d machines; conditions: %+v", n, conditions)
	}
}

// TestOtherLabelsMayBeChanged: those that the set does not select by are no concern of it.
func TestOtherLabelsMayBeChanged(t *testing.T) {
	s := newServer(newSet(4))
	s.happens = relabels(map[string]string{"name": pool, "team": "storage"})
	c := s.newController()
	pass(t, c)
	s.catchUp()
	pass(t, c)
	if n := s.activeCount(); n != 4 || s.count("delete") > 0 {
		t.Errorf("%d machines; writes: %q", n, s.writes)
	}
}

// TestARelabelledMachineThatStays: that it cannot be deleted is told with the rest.
func TestARelabelledMachineThatStays(t *testing.T) {
	s := newServer(newSet(1))
	s.happens = relabels(nil)
	s.answer = func(verb string, _ client.Object) (error, bool) {
		if verb == "delete" {
			return apierrors.NewForbidden(resource, "pool-bc2x4", errors.New("no deletions")), false
		}
		return nil, false
	}
	_, err := s.newController().Reconcile(t.Context(), request)
	if !errors.Is(err, errCreate) || !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "does not match") {
		t.Errorf("got the error %v", err)
	}
	if conditions := s.set().Status.Conditions; len(conditions) != 1 || strings.Contains(conditions[0].Message, "bc2x4") {
		t.Errorf("each attempt would write another text: %+v", conditions)
	}
}

// TestMachinesThatGetAnotherOwnerAreNotMadeWithoutEnd: a webhook that names another controller takes
// each Machine away from the set.
func TestMachinesThatGetAnotherOwnerAreNotMadeWithoutEnd(t *testing.T) {
	s := newServer(newSet(4))
	s.overshoot = &Overshoot{Up: 2, Down: 1}
	s.happens = func(verb string, object client.Object) {
		if verb == "create" {
			object.SetOwnerReferences([]metav1.OwnerReference{{
				APIVersion: "v1", Kind: "ConfigMap", Name: "other", UID: "other", Controller: new(true),
			}})
		}
	}
	c := s.newController()
	const tries = 3
	for range tries {
		if _, err := c.Reconcile(t.Context(), request); !errors.Is(err, errCreate) {
			t.Errorf("got the error %v, so nobody learns of it", err)
		}
		s.catchUp()
		s.againTooEarly(t, c)
	}
	if all, active := len(s.all()), s.activeCount(); all != tries || active != 0 {
		t.Errorf("%d machines were made in %d passes, and %d of them stay", all, tries, active)
	}
}
