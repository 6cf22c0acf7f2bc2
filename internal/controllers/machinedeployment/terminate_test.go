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

// statusWrites returns the number of status writes since the last call.
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

// counters returns the numbers of the status as a string.
func (s *server) counters() string {
	status := s.deployment().Status
	return fmt.Sprintf("%d exist, %d updated, %d ready, %d available, %d unavailable; generation %d",
		status.Replicas, status.UpdatedReplicas, status.ReadyReplicas, status.AvailableReplicas, status.UnavailableReplicas, status.ObservedGeneration)
}

// TestMachineDeployment_DeletionCountsDown checks that the status counts down to zero during a rollout, and stays
// there while another finalizer keeps the deployment.
func TestMachineDeployment_DeletionCountsDown(t *testing.T) {
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
			s.change(func(*v1alpha1.MachineDeployment) {}) // a deletion also creates a new generation
			must(s.live.Delete(t.Context(), s.deployment()))
			// counts checks the numbers after changes to the sets.
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
					t.Errorf("%d status writes, want %d", got, wantWrites)
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
				t.Errorf("the condition Progressing changed:\n%s", diff)
			}
			s.remove("pool-b")
			s.pass(t)
			if name == "background" {
				if !s.isGone() || s.statusWrites() > 0 {
					t.Error("the deployment was not removed, or its status was written again")
				}
				return
			}
			counts("0 exist, 0 updated, 0 ready, 0 available, 0 unavailable; generation 3", 1)
			counts("0 exist, 0 updated, 0 ready, 0 available, 0 unavailable; generation 3", 0)
		})
	}
}

// remove completes the deletion of a set.
func (s *server) remove(name string) {
	set := s.all()[name]
	set.Finalizers = nil
	must(s.live.Update(context.Background(), set))
}

// TestMachineDeployment_DeletionStatusIsRateLimited checks the rate of status writes when the sets change three hundred
// times in 300 ms.
func TestMachineDeployment_DeletionStatusIsRateLimited(t *testing.T) {
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
		t.Errorf("%d status writes in 300 ms", got)
	}
	if !late {
		t.Fatal("no later pass is scheduled")
	}
	now.SetTime(now.Now().Add(deletionStatusInterval))
	s.pass(t)
	if got := s.deployment().Status.Replicas; got != 1 {
		t.Errorf("%d machines, want 1", got)
	}
}

// TestMachineDeployment_DeletionConditions checks the status during a deletion: the condition about released sets
// remains, the condition about overlaps is removed, and machines of an invalid deployment are counted, too.
func TestMachineDeployment_DeletionConditions(t *testing.T) {
	s := newServer(fixture.Deployment(2), fixture.Set("a", 2, fixture.WithUID, mcm), fixture.Deployment(1, func(d *v1alpha1.MachineDeployment) { d.Name, d.UID = "other", "uid-of-other" }))
	s.change(func(d *v1alpha1.MachineDeployment) {
		d.Finalizers = []string{v1alpha1.FinalizerMCM}
	})
	s.pass(t)
	released := v1alpha1.MachineDeploymentCondition{Type: v1alpha1.MachineDeploymentSetReleased, Status: v1alpha1.ConditionTrue, Reason: "SetReleased", Message: "spec.selector: some set"}
	deployment := s.deployment()
	if conditionAt(deployment.Status, v1alpha1.MachineDeploymentSelectorOverlap) < 0 {
		t.Fatal("the deployments do not overlap")
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

// TestFinalizer_LegacyIsReplaced checks that the finalizer of old versions of MCM is replaced while the
// deployment exists, and removed when it is deleted.
func TestFinalizer_LegacyIsReplaced(t *testing.T) {
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
				t.Errorf("finalizers of an existing deployment: want - got +\n%s", diff)
			}
			s = with(append(finalizers, "example.com/backup")...)
			must(s.live.Delete(t.Context(), s.deployment()))
			s.pass(t)
			if diff := cmp.Diff([]string{"example.com/backup"}, s.deployment().Finalizers); diff != "" {
				t.Errorf("finalizers of a deleted deployment: want - got +\n%s", diff)
			}
		})
	}
}
