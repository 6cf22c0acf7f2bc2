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

// relabels returns a webhook that changes the labels of new Machines.
func relabels(labels map[string]string) func(string, client.Object) {
	return func(verb string, object client.Object) {
		if verb == "create" {
			object.SetLabels(labels)
		}
	}
}

// againTooEarly runs a pass before the next attempt is due, which must return the same error and create nothing.
// Then it advances the clock to the next attempt.
func (s *server) againTooEarly(t *testing.T, c *Controller) {
	t.Helper()
	before := len(s.all())
	if _, err := c.Reconcile(t.Context(), request); !errors.Is(err, errCreate) || len(s.all()) != before {
		t.Errorf("the next pass creates %d machines, error %v", len(s.all())-before, err)
	}
	s.catchUp()
	s.clock.SetTime(s.clock.Now().Add(time.Hour))
}

// TestMachineSet_RelabeledMachinesBackOff checks that a set whose new Machines get other labels does not
// create more and more Machines. Each attempt creates one, deletes it and reports why, with growing delays.
func TestMachineSet_RelabeledMachinesBackOff(t *testing.T) {
	s := newServer(newSet(4))
	s.overshoot = &Overshoot{Up: 2, Down: 1}
	s.happens = relabels(map[string]string{"name": "other"})
	c := s.newController()
	const tries = 3
	for range tries {
		if _, err := c.Reconcile(t.Context(), request); !errors.Is(err, errCreate) {
			t.Fatalf("error %v causes an immediate retry", err)
		}
		s.catchUp()
		s.againTooEarly(t, c)
	}
	if all, active := len(s.all()), s.activeCount(); all != tries || active != 0 {
		t.Errorf("%d machines were created in %d passes, %d of them remain", all, tries, active)
	}
	const why = `creating machines: the created machine has the labels "name=other", which the selector "name=pool" does not match`
	conditions := s.set().Status.Conditions
	if len(conditions) != 1 || conditions[0].Reason != v1alpha1.MachineSetReasonFailedCreate || conditions[0].Message != why {
		t.Errorf("conditions: %+v", conditions)
	}
	if lines := strings.Join(s.events.lines, "\n"); strings.Contains(lines, "SuccessfulCreate") || !strings.Contains(lines, "FailedCreate: Error creating: ") {
		t.Errorf("events: %q", s.events.lines)
	}

	s.happens = nil
	s.clock.SetTime(s.clock.Now().Add(time.Hour))
	pass(t, c)
	s.catchUp()
	pass(t, c)
	if n, conditions := s.activeCount(), s.set().Status.Conditions; n != 4 || len(conditions) > 0 {
		t.Errorf("%d machines after the webhook was removed; conditions: %+v", n, conditions)
	}
}

// TestMachineSet_OtherLabelsMayChange checks that other labels than those of the selector may change.
func TestMachineSet_OtherLabelsMayChange(t *testing.T) {
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

// TestMachineSet_RelabeledMachineCannotBeDeleted checks that the error contains the failure to delete the Machine.
func TestMachineSet_RelabeledMachineCannotBeDeleted(t *testing.T) {
	s := newServer(newSet(1))
	s.happens = relabels(nil)
	s.respond = func(verb string, _ client.Object) (error, bool) {
		if verb == "delete" {
			return apierrors.NewForbidden(resource, "pool-bc2x4", errors.New("no deletions")), false
		}
		return nil, false
	}
	_, err := s.newController().Reconcile(t.Context(), request)
	if !errors.Is(err, errCreate) || !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "does not match") {
		t.Errorf("error %v", err)
	}
	if conditions := s.set().Status.Conditions; len(conditions) != 1 || strings.Contains(conditions[0].Message, "bc2x4") {
		t.Errorf("the condition contains the generated name: %+v", conditions)
	}
}

// TestMachineSet_ForeignOwnerBacksOff checks a webhook that sets another controller on each new
// Machine.
func TestMachineSet_ForeignOwnerBacksOff(t *testing.T) {
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
			t.Errorf("error %v is not reported", err)
		}
		s.catchUp()
		s.againTooEarly(t, c)
	}
	if all, active := len(s.all()), s.activeCount(); all != tries || active != 0 {
		t.Errorf("%d machines were created in %d passes, %d of them remain", all, tries, active)
	}
}
