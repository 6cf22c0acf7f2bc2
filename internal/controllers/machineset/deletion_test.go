package machineset

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/restore"
)

// counters returns the numbers of the status as a string.
func (s *server) counters() string {
	status := s.set().Status
	return fmt.Sprintf("%d exist, %d ready, %d available; generation %d", status.Replicas, status.ReadyReplicas, status.AvailableReplicas, status.ObservedGeneration)
}

// heldBy sets the finalizers of a set that its controller has seen, so that it is not taken for a restored one.
func heldBy(finalizers ...string) setChange {
	return func(set *v1alpha1.MachineSet) {
		set.Finalizers = append(set.Finalizers, finalizers...)
		restore.RecordUID(set)
	}
}

// TestMachineSet_DeletionCountsDown checks that the status counts down to zero during a deletion, and stays there
// while another finalizer keeps the set.
func TestMachineSet_DeletionCountsDown(t *testing.T) {
	for name, finalizer := range map[string]string{
		"foreground": metav1.FinalizerDeleteDependents,
		"held":       "example.com/backup",
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(newSet(2, heldBy(v1alpha1.FinalizerMCM, finalizer)), machine("a"), machine("b"))
			c := s.newController()
			counts := func(want string) {
				t.Helper()
				s.catchUp()
				pass(t, c)
				if diff := cmp.Diff(want, s.counters()); diff != "" {
					t.Errorf("want - got +\n%s", diff)
				}
			}
			counts("2 exist, 2 ready, 2 available; generation 1")
			s.scale(2) // a deletion also creates a new generation
			must(s.live.Delete(t.Context(), s.set()))
			counts("2 exist, 0 ready, 0 available; generation 2")
			s.vanish("a")
			counts("1 exist, 0 ready, 0 available; generation 2")
			s.vanish("b")
			s.catchUp()
			pass(t, c) // removes the finalizer
			counts("0 exist, 0 ready, 0 available; generation 2")
			writes := len(s.writes)
			counts("0 exist, 0 ready, 0 available; generation 2")
			if len(s.writes) > writes {
				t.Errorf("unexpected writes: %q", s.writes[writes:])
			}
		})
	}
}

// TestMachineSet_DeletionCountsDespiteConflicts checks that the status counts down even if Machines change just before
// they are deleted, and that these conflicts are not reported.
func TestMachineSet_DeletionCountsDespiteConflicts(t *testing.T) {
	set := newSet(3, heldBy(v1alpha1.FinalizerMCM))
	s := newServer(set, machine("a"), machine("b"), machine("c"))
	c := s.newController()
	pass(t, c)
	s.scale(3)
	must(s.live.Delete(t.Context(), s.set()))
	for left, gone := range []string{"c", "b"} {
		changed := s.all()["a"]
		changed.Annotations = map[string]string{"seen": gone}
		must(s.live.Update(t.Context(), changed))
		if result, err := c.Reconcile(t.Context(), request); err != nil || result.RequeueAfter == 0 {
			t.Fatalf("want a retry: %v, %v", result, err)
		}
		want := fmt.Sprintf("%d exist, 0 ready, 0 available; generation 2", 3-left)
		if diff := cmp.Diff(want, s.counters()); diff != "" {
			t.Errorf("want - got +\n%s", diff)
		}
		if at := s.set().Status.Conditions; len(at) > 0 || strings.Contains(strings.Join(s.events.lines, "\n"), "FailedDelete") {
			t.Errorf("conditions %+v, events %q", at, s.events.lines)
		}
		s.vanish(gone)
		delete(s.shown, gone) // the cache is stale for the others
		for _, name := range []string{"b", "c"} {
			if s.shown[name] != nil {
				s.show(name)
			}
		}
	}
}

// TestFinalizer_LegacyIsReplaced checks that the finalizer of old versions of MCM, alone or next to the current
// one, is replaced while the set exists and removed when it is deleted.
func TestFinalizer_LegacyIsReplaced(t *testing.T) {
	for name, finalizers := range map[string][]string{
		"alone":  {v1alpha1.FinalizerLegacy},
		"beside": {v1alpha1.FinalizerLegacy, v1alpha1.FinalizerMCM},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(newSet(0, heldBy(finalizers...)))
			pass(t, s.newController())
			if diff := cmp.Diff([]string{v1alpha1.FinalizerMCM}, s.set().Finalizers); diff != "" {
				t.Errorf("finalizers of an existing set: want - got +\n%s", diff)
			}
			s = newServer(newSet(0, heldBy(append(finalizers, "example.com/backup")...)))
			must(s.live.Delete(t.Context(), s.set()))
			s.catchUp()
			pass(t, s.newController())
			if diff := cmp.Diff([]string{"example.com/backup"}, s.set().Finalizers); diff != "" {
				t.Errorf("finalizers of a deleted set: want - got +\n%s", diff)
			}
		})
	}
}
