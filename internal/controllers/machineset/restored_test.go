package machineset

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/restore"
)

// restored makes a set one that was restored from a backup: it has no status, but the finalizer.
func restored(set *v1alpha1.MachineSet) { set.Finalizers = []string{v1alpha1.FinalizerMCM} }

// reasons returns the reasons of all events.
func (s *server) reasons() []string {
	var reasons []string
	for _, line := range s.events.lines {
		reason, _, _ := strings.Cut(line, ":")
		reasons = append(reasons, reason)
	}
	return reasons
}

// TestMachineSet_RestoredWaitsForItsMachines checks that a restored set creates no Machines while its own are being
// restored, in the same or another process, and that it behaves like any other set afterwards.
func TestMachineSet_RestoredWaitsForItsMachines(t *testing.T) {
	s := newServer(newSet(2, restored))
	for range 2 {
		c := s.newController()
		pass(t, c)
		pass(t, c)
	}
	if set := s.set(); len(s.all()) > 0 || !restore.Waits(set) || restore.IsNewSet(set) {
		t.Fatalf("%d machines, annotations %v, status %+v", len(s.all()), set.Annotations, set.Status)
	}
	c := s.newController()
	must(s.live.Create(testContext, machine("a", ownerless)))
	s.catchUp()
	pass(t, c)
	if len(s.all()) != 1 || !metav1.IsControlledBy(s.all()["a"], s.set()) || !restore.Waits(s.set()) {
		t.Fatalf("%d machines, annotations %v", len(s.all()), s.set().Annotations)
	}
	must(s.live.Create(testContext, machine("b", ownerless)))
	s.catchUp()
	pass(t, c)
	s.catchUp()
	pass(t, c)
	if len(s.all()) != 2 || restore.Waits(s.set()) {
		t.Fatalf("%d machines, annotations %v", len(s.all()), s.set().Annotations)
	}
	want := []string{"AwaitingRestore", "Adopted", "Adopted", "Restored"}
	if diff := cmp.Diff(want, s.reasons()); diff != "" {
		t.Errorf("events: want - got +\n%s", diff)
	}
	s.vanishNow("a")
	s.catchUp()
	pass(t, s.newController())
	if len(s.all()) != 2 || restore.Waits(s.set()) {
		t.Errorf("%d machines after one was lost, annotations %v", len(s.all()), s.set().Annotations)
	}
}

// TestMachineSet_RestoreTimesOut checks that a restored set creates the Machines that were not restored in time.
func TestMachineSet_RestoreTimesOut(t *testing.T) {
	s := newServer(newSet(3, restored), machine("a", ownerless))
	c := s.newController()
	s.catchUp()
	for range 2 {
		pass(t, c)
		s.catchUp()
	}
	result, err := c.Reconcile(testContext, request)
	if err != nil || result.RequeueAfter != restore.Timeout || len(s.all()) != 1 {
		t.Fatalf("%d machines, the next pass is in %s, %v", len(s.all()), result.RequeueAfter, err)
	}
	s.clock.SetTime(noon.Add(restore.Timeout))
	for range 2 {
		pass(t, c)
		s.catchUp()
	}
	if len(s.all()) != 3 || !slices.Contains(s.reasons(), "RestoreIncomplete") {
		t.Errorf("%d machines, events %q", len(s.all()), s.events.lines)
	}
}

// TestMachineSet_NewSetDoesNotWait checks that a set that a user creates is not taken for a restored one, even if the
// process terminates after it has written the finalizer.
func TestMachineSet_NewSetDoesNotWait(t *testing.T) {
	s := newServer(newSet(2))
	must(s.newController().register(testContext, s.set()))
	if set := s.set(); len(set.Finalizers) != 1 || !restore.IsNewSet(set) {
		t.Fatalf("finalizers %v, status %+v", set.Finalizers, set.Status)
	}
	s.clock.SetTime(noon.Add(time.Second))
	pass(t, s.newController())
	if len(s.all()) != 2 || restore.Waits(s.set()) {
		t.Errorf("%d machines, annotations %v", len(s.all()), s.set().Annotations)
	}
}
