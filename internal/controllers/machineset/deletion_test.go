package machineset

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// counters are the numbers of a status that users watch.
func (s *server) counters() string {
	status := s.set().Status
	return fmt.Sprintf("%d exist, %d ready, %d available; generation %d", status.Replicas, status.ReadyReplicas, status.AvailableReplicas, status.ObservedGeneration)
}

// heldBy are finalizers of a set.
func heldBy(finalizers ...string) setChange {
	return func(set *v1alpha1.MachineSet) { set.Finalizers = append(set.Finalizers, finalizers...) }
}

// TestASetThatIsDeletedCountsDown: until the last machine is gone, and also if somebody else's
// finalizer holds the set beyond that.
func TestASetThatIsDeletedCountsDown(t *testing.T) {
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
			s.scale(2) // as a deletion makes another generation
			must(s.live.Delete(t.Context(), s.set()))
			counts("2 exist, 0 ready, 0 available; generation 2")
			s.vanish("a")
			counts("1 exist, 0 ready, 0 available; generation 2")
			s.vanish("b")
			s.catchUp()
			pass(t, c) // lets go of the set
			counts("0 exist, 0 ready, 0 available; generation 2")
			writes := len(s.writes)
			counts("0 exist, 0 ready, 0 available; generation 2")
			if len(s.writes) > writes {
				t.Errorf("nothing has changed, but it writes %q", s.writes[writes:])
			}
		})
	}
}

// TestASetIsCountedWhileItsMachinesChange: in each pass some change just before they are
// deleted, of which users read nothing, and the others are counted down.
func TestASetIsCountedWhileItsMachinesChange(t *testing.T) {
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
			t.Fatalf("it is not tried again: %v, %v", result, err)
		}
		want := fmt.Sprintf("%d exist, 0 ready, 0 available; generation 2", 3-left)
		if diff := cmp.Diff(want, s.counters()); diff != "" {
			t.Errorf("want - got +\n%s", diff)
		}
		if at := s.set().Status.Conditions; len(at) > 0 || strings.Contains(strings.Join(s.events.lines, "\n"), "FailedDelete") {
			t.Errorf("conditions %+v, events %q", at, s.events.lines)
		}
		s.vanish(gone)
		delete(s.shown, gone) // and of the others, the cache is behind
		for _, name := range []string{"b", "c"} {
			if s.shown[name] != nil {
				s.show(name)
			}
		}
	}
}

// TestTheFinalizerOfOldVersionsGoes: that which very old versions of MCM put on sets, where it stands alone or
// beside that of today, is replaced while the set lives, and removed when it is deleted.
func TestTheFinalizerOfOldVersionsGoes(t *testing.T) {
	for name, finalizers := range map[string][]string{
		"alone":  {v1alpha1.FinalizerLegacy},
		"beside": {v1alpha1.FinalizerLegacy, v1alpha1.FinalizerMCM},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(newSet(0, heldBy(finalizers...)))
			pass(t, s.newController())
			if diff := cmp.Diff([]string{v1alpha1.FinalizerMCM}, s.set().Finalizers); diff != "" {
				t.Errorf("the finalizers of a set that lives: want - got +\n%s", diff)
			}
			s = newServer(newSet(0, heldBy(append(finalizers, "example.com/backup")...)))
			must(s.live.Delete(t.Context(), s.set()))
			s.catchUp()
			pass(t, s.newController())
			if diff := cmp.Diff([]string{"example.com/backup"}, s.set().Finalizers); diff != "" {
				t.Errorf("the finalizers of a set that is deleted: want - got +\n%s", diff)
			}
		})
	}
}
