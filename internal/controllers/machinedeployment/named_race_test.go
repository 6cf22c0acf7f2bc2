package machinedeployment

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

// TestNamedMachine_DisappearsBeforeMark checks a named Machine that disappears before it is marked. Its event
// triggers no pass.
func TestNamedMachine_DisappearsBeforeMark(t *testing.T) {
	s := scaledByName(t, "m-1~"+fixture.Later)
	s.refuse = func(verb string, object client.Object) error {
		if verb != "patch" || object.GetName() != "m-1" {
			return nil
		}
		must(s.live.Delete(t.Context(), s.machine(t, "m-1")))
		return apierrors.NewNotFound(v1alpha1.SchemeGroupVersion.WithResource("machines").GroupResource(), "m-1")
	}
	if s.pass(t).RequeueAfter == 0 {
		t.Error("no next pass is scheduled")
	}
	s.pass(t)
	if got := s.only(t).Spec.Replicas; got != 2 {
		t.Errorf("the set has %d replicas", got)
	}
	if got, ok := s.deployment().Annotations[v1alpha1.AnnotationKeyTriggerDeletion]; ok {
		t.Errorf("annotation %q", got)
	}
}

// TestNamedMachine_KeepsMarkWithoutTime checks that a Machine keeps its mark, which is the only record of when it was named.
func TestNamedMachine_KeepsMarkWithoutTime(t *testing.T) {
	s := scaledByName(t, "m-1")
	s.change(func(d *v1alpha1.MachineDeployment) { delete(d.Annotations, v1alpha1.AnnotationKeyLastReplicaChange) })
	now := clocktesting.NewFakePassiveClock(fixture.Noon)
	s.Clock = now
	for range 4 {
		s.pass(t)
		now.SetTime(now.Now().Add(time.Second))
	}
	if n := len(slices.DeleteFunc(slices.Clone(s.writes), func(w string) bool { return w != "patch m-1" })); n != 1 {
		t.Errorf("%d marks: %q", n, s.writes)
	}
	if got := s.machine(t, "m-1").Annotations[v1alpha1.AnnotationKeyMarkedForDeletionTime]; got != fixture.Noon.Format(time.RFC3339) {
		t.Errorf("mark %q", got)
	}
	if got := s.only(t).Spec.Replicas; got != 2 {
		t.Errorf("the set has %d replicas", got)
	}
}

// TestNamedMachine_LatestTimeIsUsed checks that the latest time is used. The set compares it with the time when the
// deployment was scaled.
func TestNamedMachine_LatestTimeIsUsed(t *testing.T) {
	s := scaledByName(t, "m-1~"+fixture.Early)
	s.pass(t)
	s.change(func(d *v1alpha1.MachineDeployment) {
		d.Annotations[v1alpha1.AnnotationKeyTriggerDeletion] = "m-1~" + fixture.Later
	})
	for range 3 {
		s.pass(t)
	}
	want := map[string]string{v1alpha1.AnnotationKeyMachinePriority: "1", v1alpha1.AnnotationKeyMarkedForDeletionTime: fixture.Later}
	if diff := cmp.Diff(want, s.machine(t, "m-1").Annotations); diff != "" {
		t.Errorf("want - got +\n%s", diff)
	}
	if got := s.deployment().Annotations[v1alpha1.AnnotationKeyTriggerDeletion]; got != "m-1~"+fixture.Later {
		t.Errorf("entry %q", got)
	}
}

// TestNamedMachine_UnscaledSetGetsTimeOfChange checks that a set gets the time of the change even if it is not scaled.
// Otherwise it would not delete its named Machine. In this test, the rollout may keep all of its Machines.
func TestNamedMachine_UnscaledSetGetsTimeOfChange(t *testing.T) {
	of4 := fixture.ScaledFor(4, 5)
	old, current := fixture.Set("a", 3, fixture.WithUID, of4), fixture.Set("b", 1, fixture.WithUID, of4, fixture.Reports(1, 0))
	s := newServer(fixture.Deployment(3, fixture.Rolling("1", "0"), fixture.OfClass("b"), func(d *v1alpha1.MachineDeployment) {
		d.Annotations = map[string]string{v1alpha1.AnnotationKeyTriggerDeletion: "m~" + fixture.Later, v1alpha1.AnnotationKeyLastReplicaChange: fixture.Later}
	}), old, current, fixture.Member(old, "m"))
	s.Target = nil
	for range 3 {
		s.pass(t)
	}
	for name, replicas := range map[string]int32{"pool-a": 3, "pool-b": 1} {
		set := s.all()[name]
		if set.Spec.Replicas != replicas {
			t.Errorf("%s has %d replicas, want %d", name, set.Spec.Replicas, replicas)
		}
		if got := set.Annotations[v1alpha1.AnnotationKeyLastReplicaChange]; got != fixture.Later {
			t.Errorf("%s: time of the change %q, want %q", name, got, fixture.Later)
		}
	}
	if got := s.machine(t, "m").Annotations[v1alpha1.AnnotationKeyMarkedForDeletionTime]; got != fixture.Later {
		t.Errorf("mark %q", got)
	}
}

// TestNamedMachine_EntryIsRemovedWithMachine checks that the deployment is scaled and nothing else is marked if the Machine
// fails or is deleted between the mark and the scaling.
func TestNamedMachine_EntryIsRemovedWithMachine(t *testing.T) {
	for reason, happens := range map[string]func(*server, *v1alpha1.Machine){
		"it fails": func(s *server, m *v1alpha1.Machine) {
			m.Status.CurrentStatus.Phase = v1alpha1.MachineFailed
			must(s.live.Update(t.Context(), m))
		},
		"it is deleted": func(s *server, m *v1alpha1.Machine) { must(s.live.Delete(t.Context(), m)) },
		"it leaves": func(s *server, m *v1alpha1.Machine) {
			m.Finalizers = []string{v1alpha1.FinalizerMCM}
			must(s.live.Update(t.Context(), m))
			must(s.live.Delete(t.Context(), m))
		},
	} {
		t.Run(reason, func(t *testing.T) {
			s := scaledByName(t, "m-1~"+fixture.Later)
			s.pass(t)
			happens(s, s.machine(t, "m-1"))
			s.pass(t)
			if got := s.only(t).Spec.Replicas; got != 2 {
				t.Errorf("the set has %d replicas", got)
			}
			if got, ok := s.deployment().Annotations[v1alpha1.AnnotationKeyTriggerDeletion]; ok {
				t.Errorf("annotation %q", got)
			}
			for _, name := range []string{"m-0", "m-2"} {
				if diff := cmp.Diff(map[string]string{v1alpha1.AnnotationKeyMachinePriority: "3"}, s.machine(t, name).Annotations); diff != "" {
					t.Errorf("%s: want - got +\n%s", name, diff)
				}
			}
		})
	}
}
