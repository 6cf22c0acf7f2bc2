package machinedeployment

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

// statusWrites is how many statuses were written since the last call.
func (s *server) statusWrites() int {
	n := 0
	for _, write := range s.writes {
		if strings.HasPrefix(write, "patch status ") {
			n++
		}
	}
	s.writes = nil
	return n
}

// counters are the numbers of a status that users watch.
func (s *server) counters() string {
	status := s.deployment().Status
	return fmt.Sprintf("%d exist, %d updated, %d ready, %d available, %d unavailable; generation %d",
		status.Replicas, status.UpdatedReplicas, status.ReadyReplicas, status.AvailableReplicas, status.UnavailableReplicas, status.ObservedGeneration)
}

// TestADeploymentThatIsDeletedCountsDown: in the middle of a rollout, until the last machine is
// gone, and also if somebody else's finalizer holds the deployment beyond that.
func TestADeploymentThatIsDeletedCountsDown(t *testing.T) {
	for name, finalizers := range map[string][]string{
		"background": {v1alpha1.FinalizerMCM},
		"foreground": {v1alpha1.FinalizerMCM, metav1.FinalizerDeleteDependents},
		"held":       {v1alpha1.FinalizerMCM, "example.com/backup"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(fixture.Deployment(3, fixture.OfClass("b"), fixture.Rolling("1", "1")), fixture.Set("a", 2, fixture.WithUID, mcm), fixture.Set("b", 2, fixture.WithUID, mcm))
			now := clocktesting.NewFakePassiveClock(fixture.Noon)
			s.Clock = now
			s.change(func(d *v1alpha1.MachineDeployment) { d.Finalizers = finalizers })
			s.pass(t)
			progress := s.progress()
			s.change(func(*v1alpha1.MachineDeployment) {}) // as a deletion makes it
			must(s.live.Delete(t.Context(), s.deployment()))
			// counts is what is to be read after the sets have changed.
			counts := func(want string, wantWrites int, changes ...func()) {
				t.Helper()
				for _, change := range changes {
					change()
				}
				now.SetTime(now.Now().Add(deletionStatusInterval))
				s.pass(t)
				if diff := cmp.Diff(want, s.counters()); diff != "" {
					t.Errorf("want - got +\n%s", diff)
				}
				if got := s.statusWrites(); got != wantWrites {
					t.Errorf("%d statuses were written, want %d", got, wantWrites)
				}
			}
			has := func(set string, exist, available int32) func() {
				return func() { s.setSet(t, set, fixture.Reports(exist, available)) }
			}
			s.statusWrites()
			counts("4 exist, 2 updated, 4 ready, 4 available, 0 unavailable; generation 3", 1)
			counts("4 exist, 2 updated, 0 ready, 0 available, 4 unavailable; generation 3", 1, has("pool-a", 2, 0), has("pool-b", 2, 0))
			counts("3 exist, 2 updated, 0 ready, 0 available, 3 unavailable; generation 3", 1, has("pool-a", 1, 0))
			counts("3 exist, 2 updated, 0 ready, 0 available, 3 unavailable; generation 3", 0)
			counts("2 exist, 2 updated, 0 ready, 0 available, 2 unavailable; generation 3", 1, func() { s.remove("pool-a") })
			if diff := cmp.Diff(progress, s.progress()); diff != "" {
				t.Errorf("it does not roll, and its progress changed:\n%s", diff)
			}
			s.remove("pool-b")
			s.pass(t)
			if name == "background" {
				if !s.isGone() || s.statusWrites() > 0 {
					t.Error("it is not gone, or its status was written for nobody")
				}
				return
			}
			counts("0 exist, 0 updated, 0 ready, 0 available, 0 unavailable; generation 3", 1)
			counts("0 exist, 0 updated, 0 ready, 0 available, 0 unavailable; generation 3", 0)
		})
	}
}

// remove is the end of a set that is being deleted.
func (s *server) remove(name string) {
	set := s.all()[name]
	set.Finalizers = nil
	must(s.live.Update(context.Background(), set))
}

// TestADeploymentThatIsDeletedIsCountedSeldom: its sets change three hundred times
// in 300 ms.
func TestADeploymentThatIsDeletedIsCountedSeldom(t *testing.T) {
	s := newServer(fixture.Deployment(300), fixture.Set("a", 300, fixture.WithUID, mcm))
	now := clocktesting.NewFakePassiveClock(fixture.Noon)
	s.Clock = now
	s.pass(t)
	must(s.live.Delete(t.Context(), s.deployment()))
	s.pass(t)
	s.statusWrites()
	late := false
	for left := int32(299); left > 0; left-- {
		now.SetTime(now.Now().Add(time.Millisecond))
		s.setSet(t, "pool-a", fixture.Reports(left, 0))
		late = s.pass(t).RequeueAfter > 0
	}
	if got := s.statusWrites(); got > 3 {
		t.Errorf("%d statuses were written in 300 ms", got)
	}
	if !late {
		t.Fatal("what came last is not counted later")
	}
	now.SetTime(now.Now().Add(deletionStatusInterval))
	s.pass(t)
	if got := s.deployment().Status.Replicas; got != 1 {
		t.Errorf("%d machines are counted, want 1", got)
	}
}

// TestWhatIsSaidOfADeploymentThatIsDeleted: sets that it released stay, others overlap with it
// no more, and it counts what a broken one has, too.
func TestWhatIsSaidOfADeploymentThatIsDeleted(t *testing.T) {
	s := newServer(fixture.Deployment(2), fixture.Set("a", 2, fixture.WithUID, mcm), fixture.Deployment(1, func(d *v1alpha1.MachineDeployment) { d.Name, d.UID = "other", "uid-of-other" }))
	s.change(func(d *v1alpha1.MachineDeployment) {
		d.Finalizers = []string{v1alpha1.FinalizerMCM}
	})
	s.pass(t)
	released := v1alpha1.MachineDeploymentCondition{Type: v1alpha1.MachineDeploymentSetReleased, Status: v1alpha1.ConditionTrue, Reason: "SetReleased", Message: "spec.selector: some set"}
	deployment := s.deployment()
	if conditionAt(deployment.Status, v1alpha1.MachineDeploymentSelectorOverlap) < 0 {
		t.Fatal("the two do not overlap")
	}
	deployment.Status.Conditions = append(deployment.Status.Conditions, released)
	must(s.live.Status().Update(t.Context(), deployment))
	s.change(func(d *v1alpha1.MachineDeployment) { d.Spec.Selector, d.Spec.Replicas = nil, -1 })
	must(s.live.Delete(t.Context(), s.deployment()))
	s.pass(t)
	status := s.deployment().Status
	if conditionAt(status, v1alpha1.MachineDeploymentSelectorOverlap) >= 0 || conditionAt(status, v1alpha1.MachineDeploymentSetReleased) < 0 {
		t.Errorf("got %+v", status.Conditions)
	}
	if status.Replicas != 2 || status.ObservedGeneration != s.deployment().Generation {
		t.Errorf("got %+v", status)
	}
}

// TestTheFinalizerOfOldVersionsGoes: that which very old versions of MCM put on deployments is replaced while
// the deployment lives, and removed when it is deleted.
func TestTheFinalizerOfOldVersionsGoes(t *testing.T) {
	for name, finalizers := range map[string][]string{
		"alone":  {v1alpha1.FinalizerLegacy},
		"beside": {v1alpha1.FinalizerLegacy, v1alpha1.FinalizerMCM},
	} {
		t.Run(name, func(t *testing.T) {
			with := func(all ...string) *server {
				s := newServer(fixture.Deployment(0, fixture.OfClass("a")))
				s.change(func(d *v1alpha1.MachineDeployment) { d.Finalizers = all })
				return s
			}
			s := with(finalizers...)
			s.pass(t)
			if diff := cmp.Diff([]string{v1alpha1.FinalizerMCM}, s.deployment().Finalizers); diff != "" {
				t.Errorf("the finalizers of a deployment that lives: want - got +\n%s", diff)
			}
			s = with(append(finalizers, "example.com/backup")...)
			must(s.live.Delete(t.Context(), s.deployment()))
			s.pass(t)
			if diff := cmp.Diff([]string{"example.com/backup"}, s.deployment().Finalizers); diff != "" {
				t.Errorf("the finalizers of a deployment that is deleted: want - got +\n%s", diff)
			}
		})
	}
}
