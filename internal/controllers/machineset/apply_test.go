package machineset

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/reconcile/messages"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

// count counts the writes with the given prefix.
func (s *server) count(prefix string) int {
	n := 0
	for _, write := range s.writes {
		if strings.HasPrefix(write, prefix) {
			n++
		}
	}
	return n
}

func TestMachineSet_SlowStartStopsAtFailingBatch(t *testing.T) {
	for name, test := range map[string]struct{ good, tried int }{
		"the first is refused":        {good: 0, tried: 1},
		"the second batch is refused": {good: 1, tried: 3},
		"half of a batch is refused":  {good: 5, tried: 7},
		"the last one is refused":     {good: 29, tried: 30},
		"none is refused":             {good: 30, tried: 30},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(newSet(30))
			made := 0
			s.respond = func(verb string, _ client.Object) (error, bool) {
				if verb != "create" {
					return nil, false
				}
				made++
				if made > test.good {
					return apierrors.NewForbidden(resource, fmt.Sprintf("pool-%d", made), errors.New("exceeded quota")), false
				}
				return nil, false
			}
			_, err := s.newController().Reconcile(t.Context(), request)
			if failed := test.good < 30; failed != apierrors.IsForbidden(err) || failed != errors.Is(err, errCreate) {
				t.Errorf("error %v", err)
			}
			if tried := s.count("create Machine"); tried != test.tried {
				t.Errorf("%d attempts to create, want %d", tried, test.tried)
			}
			if n := len(s.all()); n != test.good {
				t.Errorf("%d machines, want %d", n, test.good)
			}
		})
	}
}

// TestMachineSet_FailureIsReportedOnce checks that repeated failures do not change the status. Since the set's own events
// trigger passes, a change would cause the next attempt without a delay.
func TestMachineSet_FailureIsReportedOnce(t *testing.T) {
	s := newServer(newSet(2))
	attempt := 0
	s.respond = func(verb string, _ client.Object) (error, bool) {
		if verb != "create" {
			return nil, false
		}
		attempt++
		name := "pool-bc2x" + string("456789"[attempt])
		if attempt%2 == 0 { // an error without a code, as from a webhook
			text := fmt.Sprintf("machines.machine.sapcloud.io %q is forbidden: exceeded quota", name)
			return &apierrors.StatusError{ErrStatus: metav1.Status{Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden, Message: text}}, false
		}
		return apierrors.NewForbidden(resource, name, errors.New("exceeded quota")), false
	}
	c := s.newController()
	for range 5 {
		if _, err := c.Reconcile(t.Context(), request); !apierrors.IsForbidden(err) {
			t.Fatalf("error %v", err)
		}
	}
	if n := s.count("patch status"); n != 1 {
		t.Errorf("%d writes of the status, want one", n)
	}
	conditions := s.set().Status.Conditions
	if len(conditions) != 1 || conditions[0].Reason != "FailedCreate" || !strings.Contains(conditions[0].Message, "exceeded quota") {
		t.Errorf("conditions %+v", conditions)
	}

	s.respond = nil
	pass(t, c)
	s.catchUp()
	pass(t, c)
	if conditions := s.set().Status.Conditions; len(conditions) != 0 {
		t.Errorf("conditions %+v, want none after the success", conditions)
	}
}

// TestMachineSet_DuplicateCreationRequest checks that a creation that arrives twice creates one Machine. A proxy may repeat
// a request.
func TestMachineSet_DuplicateCreationRequest(t *testing.T) {
	s := newServer(newSet(3))
	s.respond = func(verb string, object client.Object) (error, bool) {
		if verb != "create" {
			return nil, false
		}
		return apierrors.NewAlreadyExists(resource, object.GetName()), true
	}
	c := s.newController()
	pass(t, c)
	if machines, tried := len(s.all()), s.count("create Machine"); machines != 3 || tried != 3 {
		t.Errorf("%d machines after %d creations, want 3 after 3", machines, tried)
	}
	if conditions := s.set().Status.Conditions; len(conditions) != 0 {
		t.Errorf("conditions %+v", conditions)
	}
}

// TestMachineSet_DuplicateCreationRequestUnreadable checks that a creation counts as one with an unknown outcome if the
// Machine exists already and cannot be read, whatever the code of the read error is.
func TestMachineSet_DuplicateCreationRequestUnreadable(t *testing.T) {
	for _, unread := range []error{apierrors.NewInternalError(errors.New("etcd is away")), apierrors.NewTooManyRequests("later", 1)} {
		s := newServer(newSet(3))
		s.unread = unread
		s.respond = func(verb string, object client.Object) (error, bool) {
			if verb != "create" {
				return nil, false
			}
			return apierrors.NewAlreadyExists(resource, object.GetName()), true
		}
		c := s.newController()
		if _, err := c.Reconcile(t.Context(), request); err == nil {
			t.Errorf("%v: got no error", unread)
		}
		s.respond, s.unread = nil, nil
		for range 3 { // the cache does not contain them yet
			pass(t, c)
		}
		if n := len(s.all()); n > 3 {
			t.Errorf("%v: %d machines before the cache contains them", unread, n)
		}
		s.catchUp()
		pass(t, c)
		if n := len(s.all()); n != 3 {
			t.Errorf("%v: %d machines, want 3", unread, n)
		}
	}
}

// TestMachineSet_NameIsTaken checks that a creation fails if another object's Machine has the name, and that the next
// attempt uses another name.
func TestMachineSet_NameIsTaken(t *testing.T) {
	s := newServer(newSet(1))
	foreign := fixture.Machine(func(m *v1alpha1.Machine) { m.Name, m.Labels = "taken", nil })
	s.respond = func(verb string, object client.Object) (error, bool) {
		if verb != "create" {
			return nil, false
		}
		object.SetName(foreign.Name)
		return apierrors.NewAlreadyExists(resource, foreign.Name), false
	}
	must(s.live.Create(t.Context(), foreign))
	c := s.newController()
	if _, err := c.Reconcile(t.Context(), request); !apierrors.IsAlreadyExists(err) {
		t.Errorf("error %v", err)
	}
	s.respond = nil
	pass(t, c)
	if n := len(s.all()); n != 2 {
		t.Errorf("%d machines, want the other one and the set's own", n)
	}
}

func TestNewMachine(t *testing.T) {
	set := newSet(1, func(set *v1alpha1.MachineSet) {
		set.Annotations = map[string]string{v1alpha1.AnnotationKeyMachineEffectiveCreationTimeout: "30m", "other": "not copied"}
		set.Spec.Template.Annotations = map[string]string{"of": "template"}
		set.Spec.Template.Finalizers = []string{"example.com/theirs"}
	})
	untouched := set.DeepCopy()
	want := &v1alpha1.Machine{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: fixture.Namespace, GenerateName: "pool-",
			Labels: map[string]string{"name": pool},
			Annotations: map[string]string{
				"of":                                  "template",
				v1alpha1.AnnotationKeyMachinePriority: "3",
				v1alpha1.AnnotationKeyMachineEffectiveCreationTimeout: "30m",
			},
			Finalizers:      []string{"example.com/theirs", v1alpha1.FinalizerMCM},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(set, v1alpha1.SchemeGroupVersion.WithKind("MachineSet"))},
		},
		Spec: v1alpha1.MachineSpec{Class: v1alpha1.ClassSpec{Kind: "MachineClass", Name: fixture.Class}},
	}
	got := newMachine(set)
	if !strings.HasPrefix(got.Name, "pool-") || len(got.Name) != len("pool-")+5 {
		t.Errorf("name %q", got.Name)
	}
	want.Name = got.Name
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("want - got +\n%s", diff)
	}
	got.Labels["changed"], got.Annotations["changed"] = "", ""
	if diff := cmp.Diff(untouched, set); diff != "" {
		t.Errorf("the machine shares memory with its set (-want +got):\n%s", diff)
	}

	set.Spec.Template.Annotations[v1alpha1.AnnotationKeyMachinePriority] = "1"
	if newMachine(set).Annotations[v1alpha1.AnnotationKeyMachinePriority] != "1" {
		t.Error("the priority of the template was overwritten")
	}
}

func TestMachineSet_DeletionChecksUID(t *testing.T) {
	s := newServer(newSet(0), machine("a"))
	again := s.shown["a"].DeepCopy()
	again.UID = "another"
	s.vanishNow("a")
	again.ResourceVersion = ""
	must(s.live.Create(t.Context(), again))
	c := s.newController()
	pass(t, c)
	if got := s.all()["a"]; got == nil || !got.DeletionTimestamp.IsZero() {
		t.Fatal("the new machine with the same name was deleted")
	}
	s.catchUp()
	pass(t, c)
	if s.activeCount() != 0 {
		t.Error("the machine was not deleted after the cache was updated")
	}
}

// vanishNow removes a Machine without going through the recorded client.
func (s *server) vanishNow(name string) {
	s.vanish(name)
	must(s.live.Delete(testContext, s.all()[name]))
}

func TestMachineSet_EventsHaveCountAndReason(t *testing.T) {
	s := newServer(newSet(7))
	c := s.newController()
	pass(t, c)
	s.catchUp()
	created := slices.Sorted(maps.Keys(s.all()))
	s.scale(6)
	pass(t, c)
	if len(s.events.lines) != 2 {
		t.Fatalf("events %q, want one for all creations and one for the deletion", s.events.lines)
	}
	for i, want := range []string{"SuccessfulCreate: Created 7 machines (", "SuccessfulDelete: Deleted 1 machine (" + created[0] + "): 1 surplus machine, 6 desired"} {
		if !strings.HasPrefix(s.events.lines[i], want) {
			t.Errorf("event %d is %q, want %q", i, s.events.lines[i], want)
		}
	}
	if !strings.HasSuffix(s.events.lines[0], " and 2 more): 0 of 7 machines exist") {
		t.Errorf("event of the creations: %q", s.events.lines[0])
	}
}

// TestMachineSet_EventsNameFailures checks that events of the set name the failures of its Machines, in one event per
// failure.
func TestMachineSet_EventsNameFailures(t *testing.T) {
	broken := func(why string) change {
		return func(m *v1alpha1.Machine) {
			m.Status.CurrentStatus.Phase = v1alpha1.MachineFailed
			m.Status.LastOperation.Description = why
		}
	}
	s := newServer(newSet(4), machine("a", broken("no such image")), machine("b"), machine("c", broken("no such image")),
		machine("d", broken(strings.Repeat("é", 2000))))
	pass(t, s.newController())
	want := []string{"SuccessfulDelete: Deleted 2 machines (a, c): it failed: no such image", "SuccessfulDelete: Deleted 1 machine (d): it failed: éé"}
	if len(s.events.lines) != len(want) {
		t.Fatalf("got %q", s.events.lines)
	}
	for i, line := range s.events.lines {
		if !strings.HasPrefix(line, want[i]) || len(line) > 1100 || !utf8.ValidString(line) {
			t.Errorf("event %d is %q, want %q", i, line, want[i])
		}
	}
}

// TestMachineSet_EventsNameAllFailedMachines checks that all Machines with the same failure are named, in a few events. For other
// reasons, an event names only a few Machines.
func TestMachineSet_EventsNameAllFailedMachines(t *testing.T) {
	const many = 60
	why := "no such image " + strings.Repeat("x", 2000)
	objects := []client.Object{newSet(many)}
	for i := range many {
		objects = append(objects, machine(fmt.Sprintf("machine-of-the-pool-%03d", i), func(m *v1alpha1.Machine) {
			m.Status.CurrentStatus.Phase = v1alpha1.MachineFailed
			m.Status.LastOperation.Description = why
		}))
	}
	s := newServer(objects...)
	pass(t, s.newController())
	lines := strings.Join(s.events.lines, "\n")
	for _, machine := range objects[1:] {
		if n := strings.Count(lines, machine.GetName()); n != 1 {
			t.Errorf("%s is named %d times", machine.GetName(), n)
		}
	}
	for _, line := range s.events.lines {
		if !strings.Contains(line, messages.BeforeReason+messages.Failed+"no such image x") || len(line) > 1100 {
			t.Errorf("got %q", line)
		}
	}
	if len(s.events.lines) > many/10 {
		t.Errorf("%d events", len(s.events.lines))
	}
	objects = []client.Object{newSet(0)}
	for _, machine := range machines(many) {
		objects = append(objects, machine)
	}
	others := newServer(objects...)
	pass(t, others.newController())
	if got := others.events.lines; len(got) != 1 || !strings.Contains(got[0], fmt.Sprintf("and %d more", many-5)) {
		t.Errorf("got %q", got)
	}
}

func TestController_AdoptsAndReleases(t *testing.T) {
	s := newServer(newSet(2), machine("lost", ownerless), machine("changed", unlabelled), machine("mine"))
	c := s.newController()
	pass(t, c)
	owner := []metav1.OwnerReference{ownerReference(s.set())}
	for name, want := range map[string][]metav1.OwnerReference{"lost": owner, "mine": owner, "changed": nil} {
		if diff := cmp.Diff(want, s.all()[name].OwnerReferences, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("owners of %s: want - got +\n%s", name, diff)
		}
	}
	if len(s.all()) != 3 {
		t.Errorf("%d machines, want none created or deleted", len(s.all()))
	}
	for range 3 {
		pass(t, c) // the cache is stale, so the writes conflict
	}
	s.catchUp()
	pass(t, c)
	if status := s.set().Status; status.Replicas != 2 || len(status.Conditions) != 0 {
		t.Errorf("status: %+v", status)
	}
}

// TestMachineSet_MissingSetAdoptsNothing checks that a set that no longer exists adopts no Machines, since the
// garbage collector would delete them.
func TestMachineSet_MissingSetAdoptsNothing(t *testing.T) {
	for name, kill := range map[string]func(*server){
		"being deleted": func(s *server) { must(s.live.Delete(testContext, s.set())) },
		"another of the same name": func(s *server) {
			set := s.set()
			set.Finalizers = nil
			must(s.live.Update(testContext, set))
			must(s.live.Delete(testContext, set))
			must(s.live.Create(testContext, newSet(1, func(set *v1alpha1.MachineSet) { set.UID = "another" })))
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(newSet(1, heldBy(v1alpha1.FinalizerMCM)), machine("lost", ownerless))
			cached := s.set()
			kill(s)
			c := s.newController()
			if _, err := c.pass(t.Context(), cached); !apierrors.IsConflict(err) {
				t.Errorf("error %v", err)
			}
			if owners := s.all()["lost"].OwnerReferences; len(owners) > 0 {
				t.Errorf("the machine was adopted: %v", owners)
			}
		})
	}
}

// TestMachineSet_FailedAdoptionStopsPass checks that a pass stops if a Machine cannot be adopted, since the plan counts
// it as the set's own.
func TestMachineSet_FailedAdoptionStopsPass(t *testing.T) {
	for name, test := range map[string]struct {
		err    error
		reason string
	}{
		"conflict": {apierrors.NewConflict(resource, "lost", errors.New("changed")), ""},
		"refused":  {apierrors.NewForbidden(resource, "lost", errors.New("no")), "FailedAdopt"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(newSet(1), machine("lost", ownerless), machine("mine"))
			s.respond = func(verb string, object client.Object) (error, bool) {
				if verb == "patch" && object.GetName() == "lost" {
					return test.err, false
				}
				return nil, false
			}
			result, err := s.newController().Reconcile(t.Context(), request)
			if conflict := test.reason == ""; conflict != (err == nil) || conflict != (result.RequeueAfter > 0) {
				t.Errorf("result %+v, error %v", result, err)
			}
			if n := s.activeCount(); n != 2 {
				t.Errorf("%d machines, want both", n)
			}
			var reason string
			for _, condition := range s.set().Status.Conditions {
				reason = condition.Reason
			}
			if reason != test.reason {
				t.Errorf("reason %q, want %q", reason, test.reason)
			}
		})
	}
}

func TestMachineSet_DeletionDeletesMachinesFirst(t *testing.T) {
	s := newServer(newSet(1), machine("a"), machine("b", unlabelled), machine("other", ownerless, unlabelled))
	c := s.newController()
	pass(t, c)
	s.catchUp()
	must(s.live.Patch(t.Context(), s.all()["b"], client.RawPatch("application/merge-patch+json",
		[]byte(`{"metadata":{"ownerReferences":[{"apiVersion":"machine.sapcloud.io/v1alpha1","kind":"MachineSet","name":"pool","uid":"uid-of-pool","controller":true}]}}`))))
	s.catchUp()
	must(s.live.Delete(t.Context(), s.set()))
	pass(t, c)
	for name, leaving := range map[string]bool{"a": true, "b": true, "other": false} {
		if got := !s.all()[name].DeletionTimestamp.IsZero(); got != leaving {
			t.Errorf("%s is being deleted: %t, want %t", name, got, leaving)
		}
	}
	s.catchUp()
	pass(t, c)
	s.vanish("a")
	s.vanish("b")
	pass(t, c) // the cache still contains them
	if s.set().DeletionTimestamp.IsZero() {
		t.Fatal("the set is no longer being deleted")
	}
	s.catchUp()
	pass(t, c)
	err := s.live.Get(t.Context(), request.NamespacedName, &v1alpha1.MachineSet{})
	if !apierrors.IsNotFound(err) {
		t.Errorf("the set without machines still exists: %v", err)
	}
	pass(t, c) // a missing set is not an error
}

// TestMachineSet_StaleCacheKeepsFinalizer checks that the finalizer remains while the cache lacks Machines of the
// set.
func TestMachineSet_StaleCacheKeepsFinalizer(t *testing.T) {
	s := newServer(newSet(1, heldBy(v1alpha1.FinalizerMCM)))
	c := s.newController()
	pass(t, c) // the cache does not contain the new machine
	must(s.live.Delete(t.Context(), s.set()))
	pass(t, c)
	if !slices.Contains(s.set().Finalizers, v1alpha1.FinalizerMCM) || len(s.all()) != 1 {
		t.Error("the finalizer was removed although the set has a machine")
	}
}

// TestMachineSet_ReleaseKeepsOtherOwners checks that a release keeps other owner references.
func TestMachineSet_ReleaseKeepsOtherOwners(t *testing.T) {
	theirs := metav1.OwnerReference{APIVersion: "example.com/v1", Kind: "Rack", Name: "r1", UID: "uid-of-r1"}
	s := newServer(newSet(0), machine("a", unlabelled, func(m *v1alpha1.Machine) { m.OwnerReferences = append(m.OwnerReferences, theirs) }))
	pass(t, s.newController())
	if diff := cmp.Diff([]metav1.OwnerReference{theirs}, s.all()["a"].OwnerReferences); diff != "" {
		t.Errorf("owners: want - got +\n%s", diff)
	}
}
