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

// TestNamedMachine_PreservedIsNotReplacedByOther checks a named Machine that its set does not delete because it is
// preserved. The set must not delete another Machine in its place. Without preservation, the named Machine is
// deleted.
func TestNamedMachine_PreservedIsNotReplacedByOther(t *testing.T) {
	for name, test := range map[string]struct {
		expiry          time.Duration
		priority, entry string
	}{
		"preserved":     {time.Hour, "1", "m-0~" + fixture.Later},
		"expired":       {0, "3", ""},
		"expired early": {-time.Hour, "3", ""},
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
				t.Errorf("priority %q, want %q", got, test.priority)
			}
			if got := s.deployment().Annotations[v1alpha1.AnnotationKeyTriggerDeletion]; got != test.entry {
				t.Errorf("annotation %q, want %q", got, test.entry)
			}
			if got := s.only(t).Spec.Replicas; got != 2 {
				t.Errorf("the set has %d replicas, want 2", got)
			}
		})
	}
}

// TestNamedMachine_DuplicateEntries checks that a Machine that is named twice is marked once, with the latest time.
func TestNamedMachine_DuplicateEntries(t *testing.T) {
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
				t.Errorf("%d marks, the last is %q", len(marks), got)
			}
			if got := s.deployment().Annotations[v1alpha1.AnnotationKeyTriggerDeletion]; got != "m-1~"+fixture.Later {
				t.Errorf("annotation %q", got)
			}
			if n := s.only(t).Spec.Replicas; n != 2 {
				t.Errorf("the set has %d replicas, want 2", n)
			}
		})
	}
}

// TestRollout_IgnoresNamedPreservedMachine checks that a set keeps a named Machine that is preserved
// in addition to its replicas, and that no other Machine is deleted in its place.
func TestRollout_IgnoresNamedPreservedMachine(t *testing.T) {
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
			t.Errorf("the new set has %d replicas, want 1", set.Spec.Replicas)
		}
	}
	if n := len(s.all()); n != 2 {
		t.Errorf("%d sets, want 2", n)
	}
}

// refusedMachine makes every write of the named Machine fail.
func (s *server) refusedMachine(name *string) {
	s.refuse = func(verb string, object client.Object) error {
		if verb == "patch" && object.GetName() == *name {
			return apierrors.NewForbidden(v1alpha1.SchemeGroupVersion.WithResource("machines").GroupResource(), *name, errors.New("denied by a policy"))
		}
		return nil
	}
}

// unmarked runs a pass in which a Machine cannot be marked.
func (s *server) unmarked(t *testing.T) {
	t.Helper()
	if _, err := s.Reconcile(t.Context(), request); !errors.Is(err, rollout.ErrMark) {
		t.Fatalf("error %v", err)
	}
}

// TestNamedMachine_FailedMarkAllowsScaleUp checks that a Machine that cannot be marked does not prevent a scale-up.
func TestNamedMachine_FailedMarkAllowsScaleUp(t *testing.T) {
	s, refused := scaledByName(t, "m-1~"+fixture.Later), "m-1"
	s.refusedMachine(&refused)
	s.change(func(d *v1alpha1.MachineDeployment) { d.Spec.Replicas = 30 })
	s.unmarked(t)
	if n := s.only(t).Spec.Replicas; n != 30 {
		t.Errorf("the set has %d replicas, want 30", n)
	}
}

// TestNamedMachine_FailedMarkPreventsScaleDown checks that a set with a Machine that cannot be marked is
// not scaled down, since it would delete another Machine. This is reported, but does not affect the condition of
// the completed rollout.
func TestNamedMachine_FailedMarkPreventsScaleDown(t *testing.T) {
	s, refused := scaledByName(t, "m-1~"+fixture.Later+",m-2~"+fixture.Later), "m-1"
	s.refusedMachine(&refused)
	s.lines = nil
	s.pass(t) // the other Machine is marked
	for range 3 {
		s.unmarked(t)
	}
	if n := s.only(t).Spec.Replicas; n != 3 {
		t.Errorf("the set has %d replicas, want 3", n)
	}
	at := conditionAt(s.deployment().Status, v1alpha1.MachineDeploymentReplicaFailure)
	if at < 0 {
		t.Fatalf("the condition is missing: %+v", s.deployment().Status.Conditions)
	}
	condition := s.deployment().Status.Conditions[at]
	if condition.Reason != v1alpha1.DeploymentReasonMarkError || !strings.Contains(condition.Message, "m-1: ") || s.progress().Reason != v1alpha1.DeploymentReasonComplete {
		t.Errorf("condition %+v, progress %+v", condition, s.progress())
	}
	events := slices.DeleteFunc(s.lines, func(line string) bool { return !strings.HasPrefix(line, v1alpha1.DeploymentReasonMarkError) })
	if diff := cmp.Diff([]string{v1alpha1.DeploymentReasonMarkError + ": " + condition.Message}, events); diff != "" {
		t.Errorf("events: want - got +\n%s", diff)
	}
	refused = ""
	for range 2 {
		s.pass(t)
	}
	if n := s.only(t).Spec.Replicas; n != 2 {
		t.Errorf("the set has %d replicas after the Machine was marked, want 2", n)
	}
	if at := conditionAt(s.deployment().Status, v1alpha1.MachineDeploymentReplicaFailure); at >= 0 {
		t.Errorf("the condition remains: %+v", s.deployment().Status.Conditions[at])
	}
}

// TestRollout_WaitsForDeletedPreservedMachine checks that a rollout waits for a preserved Machine that a user
// deleted.
func TestRollout_WaitsForDeletedPreservedMachine(t *testing.T) {
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
		t.Errorf("%d Machines are retained, want 2", got)
	}
	must(s.live.Delete(t.Context(), s.machine(t, "leaves")))
	if got := retained(); got != 1 {
		t.Errorf("%d Machines are retained after one was deleted", got)
	}
}
