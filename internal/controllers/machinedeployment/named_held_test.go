package machinedeployment

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
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/rollout"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

// TestANamedMachineThatFailedAndIsPreserved: its set never deletes it, and has to know that no
// other goes in its place. Without preservation it goes anyway.
func TestANamedMachineThatFailedAndIsPreserved(t *testing.T) {
	for name, test := range map[string]struct {
		expiry          time.Duration
		priority, entry string
	}{
		"preserved":     {time.Hour, "1", "m-0~" + fixture.Later},
		"not any more":  {0, "3", ""},
		"ran out early": {-time.Hour, "3", ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := scaledByName(t, "m-0~"+fixture.Later, func(m *v1alpha1.Machine) {
				m.Status.CurrentStatus.Phase = v1alpha1.MachineFailed
				fixture.PreservedUntil(fixture.Noon.Add(test.expiry))(m)
			})
			for range 3 {
				s.pass(t)
			}
			if got := s.machine(t, "m-0").Annotations[v1alpha1.AnnotationKeyMachinePriority]; got != test.priority {
				t.Errorf("its priority is %q, want %q", got, test.priority)
			}
			if got := s.deployment().Annotations[v1alpha1.AnnotationKeyTriggerDeletion]; got != test.entry {
				t.Errorf("the annotation is %q, want %q", got, test.entry)
			}
			if got := s.only(t).Spec.Replicas; got != 2 {
				t.Errorf("the set asks for %d, want 2", got)
			}
		})
	}
}

// TestAMachineThatIsNamedTwice is marked once, with the latest time.
func TestAMachineThatIsNamedTwice(t *testing.T) {
	for name, trigger := range map[string]string{
		"the later first":          "m-1~" + fixture.Later + ",m-1~" + fixture.Early,
		"the later last":           "m-1~" + fixture.Early + ",m-1~" + fixture.Later,
		"the same":                 "m-1~" + fixture.Later + ",m-1~" + fixture.Later,
		"the old form and the new": "m-1,m-1~" + fixture.Later,
		"the new form and the old": "m-1~" + fixture.Later + ",m-1",
		"another time zone":        "m-1~" + fixture.Later + ",m-1~2026-01-02T12:15:00+01:00",
	} {
		t.Run(name, func(t *testing.T) {
			s := scaledByName(t, trigger)
			for range 5 {
				s.pass(t)
			}
			marks := slices.DeleteFunc(slices.Clone(s.writes), func(w string) bool { return w != "patch m-1" })
			if got := s.machine(t, "m-1").Annotations[v1alpha1.AnnotationKeyMarkedForDeletionTime]; got != fixture.Later || len(marks) != 1 {
				t.Errorf("marked %d times, with %q", len(marks), got)
			}
			if got := s.deployment().Annotations[v1alpha1.AnnotationKeyTriggerDeletion]; got != "m-1~"+fixture.Later {
				t.Errorf("the annotation is %q", got)
			}
			if n := s.only(t).Spec.Replicas; n != 2 {
				t.Errorf("the set asks for %d, want 2", n)
			}
		})
	}
}

// TestARolloutDoesNotWaitForANamedMachineThatIsPreserved: its set keeps it beyond what it asks
// for, and no other goes in its place.
func TestARolloutDoesNotWaitForANamedMachineThatIsPreserved(t *testing.T) {
	old := fixture.Set("a", 3, fixture.WithUID, fixture.Reports(4, 4))
	old.Annotations[v1alpha1.AnnotationKeyLastReplicaChange] = fixture.Later
	objects := []client.Object{fixture.Deployment(3, fixture.Rolling("1", "0"), fixture.OfClass("b")), old}
	for i := range 4 {
		machine := fixture.Member(old, fmt.Sprintf("m-%d", i))
		if i == 0 {
			fixture.PreservedUntil(fixture.Noon.Add(time.Hour))(machine)
			fixture.MarkedAt(fixture.Early)(machine)
		}
		objects = append(objects, machine)
	}
	s := newServer(objects...)
	s.Target = nil
	s.pass(t)
	for name, set := range s.all() {
		if name != old.Name && set.Spec.Replicas != 1 {
			t.Errorf("the new set asks for %d, want 1", set.Spec.Replicas)
		}
	}
	if n := len(s.all()); n != 2 {
		t.Errorf("there are %d sets, want 2", n)
	}
}

// refusedMachine has every write of a Machine fail, as long as it is named.
func (s *server) refusedMachine(name *string) {
	s.refuse = func(verb string, object client.Object) error {
		if verb == "patch" && object.GetName() == *name {
			return apierrors.NewForbidden(v1alpha1.SchemeGroupVersion.WithResource("machines").GroupResource(), *name, errors.New("a policy says no"))
		}
		return nil
	}
}

// unmarked is a pass in which a Machine cannot be marked.
func (s *server) unmarked(t *testing.T) {
	t.Helper()
	if _, err := s.Reconcile(t.Context(), request); !errors.Is(err, rollout.ErrMark) {
		t.Fatalf("got the error %v", err)
	}
}

// TestAMachineThatCannotBeMarked does not keep its set from growing.
func TestAMachineThatCannotBeMarked(t *testing.T) {
	s, refused := scaledByName(t, "m-1~"+fixture.Later), "m-1"
	s.refusedMachine(&refused)
	s.change(func(d *v1alpha1.MachineDeployment) { d.Spec.Replicas = 30 })
	s.unmarked(t)
	if n := s.only(t).Spec.Replicas; n != 30 {
		t.Errorf("the set asks for %d, want 30", n)
	}
}

// TestASetWithAMachineThatCannotBeMarkedIsNotScaledDown: another one would go. That is said, and
// is no matter of the rollout, which is over.
func TestASetWithAMachineThatCannotBeMarkedIsNotScaledDown(t *testing.T) {
	s, refused := scaledByName(t, "m-1~"+fixture.Later+",m-2~"+fixture.Later), "m-1"
	s.refusedMachine(&refused)
	s.lines = nil
	s.pass(t) // the other one is marked
	for range 3 {
		s.unmarked(t)
	}
	if n := s.only(t).Spec.Replicas; n != 3 {
		t.Errorf("the set asks for %d, want 3", n)
	}
	at := conditionAt(s.deployment().Status, v1alpha1.MachineDeploymentReplicaFailure)
	if at < 0 {
		t.Fatalf("nothing is said: %+v", s.deployment().Status.Conditions)
	}
	said := s.deployment().Status.Conditions[at]
	if said.Reason != v1alpha1.DeploymentReasonMarkError || !strings.Contains(said.Message, "m-1: ") || s.progress().Reason != v1alpha1.DeploymentReasonComplete {
		t.Errorf("got %+v, and progress %+v", said, s.progress())
	}
	events := slices.DeleteFunc(s.lines, func(line string) bool { return !strings.HasPrefix(line, v1alpha1.DeploymentReasonMarkError) })
	if diff := cmp.Diff([]string{v1alpha1.DeploymentReasonMarkError + ": " + said.Message}, events); diff != "" {
		t.Errorf("events: want - got +\n%s", diff)
	}
	refused = ""
	for range 2 {
		s.pass(t)
	}
	if n := s.only(t).Spec.Replicas; n != 2 {
		t.Errorf("it can be marked, and the set asks for %d, want 2", n)
	}
	if at := conditionAt(s.deployment().Status, v1alpha1.MachineDeploymentReplicaFailure); at >= 0 {
		t.Errorf("it is still said: %+v", s.deployment().Status.Conditions[at])
	}
}

// TestAPreservedMachineThatLeavesIsNotHeld: somebody deleted it, so a rollout waits until it is
// gone.
func TestAPreservedMachineThatLeavesIsNotHeld(t *testing.T) {
	set := fixture.Set("a", 0, fixture.WithUID, fixture.Reports(2, 0), fixture.PreservedFailed(2))
	s := newServer(fixture.Deployment(2, fixture.OfClass("b")), set)
	for _, name := range []string{"stays", "leaves"} {
		machine := fixture.Member(set, name)
		machine.Finalizers = []string{v1alpha1.FinalizerMCM}
		machine.Annotations = map[string]string{v1alpha1.AnnotationKeyPreserve: "now"}
		machine.Status.CurrentStatus.PreserveExpiryTime = &metav1.Time{Time: fixture.Noon.Add(time.Hour)}
		must(s.live.Create(t.Context(), machine))
	}
	retained := func() int32 {
		f := rollout.NewFacts(s.deployment(), sets{s.only(t)}, fixture.Noon)
		of, err := s.retained(t.Context(), f)
		must(err)
		return of["pool-a"]
	}
	if got := retained(); got != 2 {
		t.Errorf("%d are held, want 2", got)
	}
	must(s.live.Delete(t.Context(), s.machine(t, "leaves")))
	if got := retained(); got != 1 {
		t.Errorf("when one leaves, %d are held", got)
	}
}
