package machinedeployment

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
)

// TestProgressDeadline plays a rollout minute by minute. The deadline is three minutes after
// the last progress.
func TestProgressDeadline(t *testing.T) {
	deployment := newDeployment(3, rolling("1", "0"), class("b"), func(d *v1alpha1.MachineDeployment) {
		d.Spec.ProgressDeadlineSeconds = ptr.To(int32(180))
	})
	at := func(minute int, sets sets) (facts, v1alpha1.MachineDeploymentStatus) {
		f := gather(deployment, sets, noon.Add(time.Duration(minute)*time.Minute))
		return f, nextStatus(f, nil)
	}
	for _, step := range []struct {
		minute int
		sets   sets
		paused bool
		reason string
		again  time.Duration
	}{
		{0, sets{setOf("a", 3), setOf("b", 1, reports(1, 0))}, false, "MachineSetUpdated", 3*time.Minute + time.Second},
		{2, sets{setOf("a", 3), setOf("b", 1, reports(1, 0))}, false, "MachineSetUpdated", time.Minute + time.Second},
		{3, sets{setOf("a", 3), setOf("b", 1, reports(1, 0))}, false, "ProgressDeadlineExceeded", 0},
		{9, sets{setOf("a", 3), setOf("b", 1, reports(1, 0))}, false, "ProgressDeadlineExceeded", 0},
		{10, sets{setOf("a", 3), setOf("b", 1)}, false, "MachineSetUpdated", 3*time.Minute + time.Second},
		{12, sets{setOf("a", 2), setOf("b", 1)}, false, "MachineSetUpdated", 3*time.Minute + time.Second}, // fewer old ones
		{14, sets{setOf("a", 2), setOf("b", 1)}, true, "DeploymentPaused", 0},
		{60, sets{setOf("a", 2), setOf("b", 1)}, false, "DeploymentResumed", 3*time.Minute + time.Second},
		{62, sets{setOf("a", 2), setOf("b", 1)}, false, "MachineSetUpdated", 3*time.Minute + time.Second},
		{66, sets{setOf("a", 0), setOf("b", 3)}, false, "NewMachineSetAvailable", 0},
		{99, sets{setOf("a", 0), setOf("b", 3, reports(3, 2))}, false, "NewMachineSetAvailable", 0},
	} {
		deployment.Spec.Paused = step.paused
		f, next := at(step.minute, step.sets)
		if got := progressOf(next).Reason; got != step.reason {
			t.Errorf("minute %d: %s, want %s", step.minute, got, step.reason)
		}
		if got := deadlineIn(f, next); got != step.again {
			t.Errorf("minute %d: it looks again in %s, want %s", step.minute, got, step.again)
		}
		deployment.Status = next
	}
}

// TestANewTemplateIsNotLateFromTheStart: what fixes a rollout that was late has a deadline of
// its own, also before there is a set for it, and whatever else the deployment wants changed.
func TestANewTemplateIsNotLateFromTheStart(t *testing.T) {
	for strategy, given := range map[string]struct {
		change change
		sets   sets
	}{
		"Recreate, old machines are left":     {recreate, sets{setOf("a", 0, reports(1, 0))}},
		"RollingUpdate, a set is not settled": {rolling("1", "0"), sets{setOf("a", 3), setOf("x", 1, reports(1, 0), unsettled)}},
	} {
		t.Run(strategy, func(t *testing.T) {
			deployment := newDeployment(3, given.change, class("b"), func(d *v1alpha1.MachineDeployment) {
				d.Spec.ProgressDeadlineSeconds = ptr.To(int32(180))
			})
			look := func(minute int) v1alpha1.MachineDeploymentCondition {
				deployment.Status = nextStatus(gather(deployment, given.sets, noon.Add(time.Duration(minute)*time.Minute)), nil)
				return progressOf(deployment.Status)
			}
			look(-60)
			if got := look(0); got.Reason != reasonTimedOut {
				t.Fatalf("before: %s", got.Reason)
			}
			deployment.Generation++
			for _, step := range []struct {
				minute int
				reason string
			}{{1, reasonUpdated}, {3, reasonUpdated}, {4, reasonTimedOut}} {
				if got := look(step.minute); got.Reason != step.reason {
					t.Errorf("minute %d: %s, want %s", step.minute, got.Reason, step.reason)
				}
			}
			deployment.Generation++
			look(10)
			deployment.Generation++ // while the last one still has time: the same words, and three minutes again
			if got := look(12); got.Reason != reasonUpdated || !got.LastUpdateTime.Time.Equal(noon.Add(12*time.Minute)) {
				t.Errorf("the next: %s since %s", got.Reason, got.LastUpdateTime)
			}
		})
	}
}

// TestARolloutDoesNotWaitForPreservedMachines: it is over with one that its old set does not
// ask for any more, and stays so when that goes.
func TestARolloutDoesNotWaitForPreservedMachines(t *testing.T) {
	old, current := setOf("a", 0, withUID, reports(1, 0), preserved(1)), setOf("b", 2, withUID)
	held := member(old, "held")
	held.Status.CurrentStatus.Phase = v1alpha1.MachineFailed
	held.Status.CurrentStatus.PreserveExpiryTime = &metav1.Time{Time: noon.Add(time.Hour)}
	held.Finalizers = []string{v1alpha1.FinalizerMCM}
	s := newServer(newDeployment(2, rolling("0", "1"), class("b")), old, current, held)
	over := func(when string) {
		t.Helper()
		s.pass(t)
		s.pass(t)
		if got := s.progress().Reason; got != reasonComplete || nodeWrites(s) > 0 {
			t.Errorf("%s: progress %s, %d nodes marked", when, got, nodeWrites(s))
		}
	}
	over("while it is preserved")
	must(s.live.Delete(t.Context(), held)) // what its set does at the expiry
	over("on its way out")
	held.Finalizers = nil
	must(s.live.Patch(t.Context(), held, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`))))
	s.setSet(t, "pool-a", reports(0, 0))
	over("gone")
}

// TestARolloutDoesNotWaitForAHealthyPreservedMachine: that can be used, and nobody counts it.
func TestARolloutDoesNotWaitForAHealthyPreservedMachine(t *testing.T) {
	old, current := setOf("a", 0, withUID, reports(1, 1), ofRevision("1")), setOf("b", 3, withUID, ofRevision("2"))
	held := member(old, "held")
	held.Annotations = map[string]string{v1alpha1.AnnotationKeyPreserve: "now"}
	held.Status.CurrentStatus.PreserveExpiryTime = &metav1.Time{Time: noon.Add(time.Hour)}
	s := newServer(newDeployment(3, rolling("1", "1"), class("b"), func(d *v1alpha1.MachineDeployment) {
		d.Spec.RevisionHistoryLimit = ptr.To(int32(0))
	}), old, current, held, setOf("0", 0, withUID))
	s.Target = nil
	s.setSet(t, "pool-b", reports(3, 2))
	s.pass(t)
	if got := s.progress().Reason; got == reasonComplete || len(s.all()) != 3 {
		t.Errorf("progress %s with %d sets, though a new machine is missing", got, len(s.all()))
	}
	s.setSet(t, "pool-b", reports(3, 3))
	s.pass(t)
	if got := s.progress().Reason; got != reasonComplete {
		t.Errorf("progress %s", got)
	}
	sets := s.all()
	if set, ok := sets["pool-0"]; ok && set.DeletionTimestamp.IsZero() || sets["pool-a"] == nil {
		t.Errorf("the history is not cut, or too much: %d sets", len(sets))
	}
}

// TestARolloutWaitsForOthers: what is not preserved has to be gone, and a preserved machine
// does not hide it.
func TestARolloutWaitsForOthers(t *testing.T) {
	old, current := setOf("a", 0, withUID, reports(2, 0), preserved(1)), setOf("b", 2, withUID)
	held := member(old, "held")
	held.Annotations = map[string]string{v1alpha1.AnnotationKeyPreserve: "now"}
	s := newServer(newDeployment(2, rolling("0", "1"), class("b")), old, current, held, member(old, "other"))
	s.pass(t)
	if got := s.progress().Reason; got == reasonComplete {
		t.Errorf("progress %s, though an old machine is left", got)
	}
}

func TestWithoutADeadlineNothingIsLate(t *testing.T) {
	deployment := newDeployment(3, class("b"))
	for _, hours := range []int{0, 1, 100} {
		f := gather(deployment, sets{setOf("a", 3), setOf("b", 1, reports(1, 0))}, noon.Add(time.Duration(hours)*time.Hour))
		deployment.Status = nextStatus(f, nil)
		if got := progressOf(deployment.Status); got.Reason != "MachineSetUpdated" || deadlineIn(f, deployment.Status) != 0 {
			t.Errorf("after %d h: %+v", hours, got)
		}
	}
}

// TestFreeze: the deployment says what its sets are, and hands on the wish to unfreeze them.
func TestFreeze(t *testing.T) {
	freeze := func(set *v1alpha1.MachineSet) { set.Labels[v1alpha1.LabelKeyFreeze] = "True" }
	s := newServer(newDeployment(3), setOf("a", 3, withUID, freeze))
	s.Target = nil
	frozenCondition := func() v1alpha1.MachineDeploymentCondition {
		for _, c := range s.deployment().Status.Conditions {
			if c.Type == v1alpha1.MachineDeploymentFrozen {
				return c
			}
		}
		return v1alpha1.MachineDeploymentCondition{}
	}
	s.pass(t)
	if c := frozenCondition(); s.deployment().Labels[v1alpha1.LabelKeyFreeze] != "True" || c.Status != "True" || c.Reason != "MachineDeploymentStateSync" {
		t.Errorf("labels %v, condition %+v", s.deployment().Labels, c)
	}
	s.change(func(d *v1alpha1.MachineDeployment) { d.Annotations[v1alpha1.AnnotationKeyUnfreeze] = "please" })
	s.pass(t)
	if got := s.only(t).Annotations[v1alpha1.AnnotationKeyUnfreeze]; got != "True" {
		t.Errorf("the set's annotation is %q", got)
	}
	if got, ok := s.deployment().Annotations[v1alpha1.AnnotationKeyUnfreeze]; ok {
		t.Errorf("the deployment's annotation is %q", got)
	}
	s.setSet(t, "pool-a", func(set *v1alpha1.MachineSet) {
		delete(set.Labels, v1alpha1.LabelKeyFreeze)
		delete(set.Annotations, v1alpha1.AnnotationKeyUnfreeze)
	})
	s.pass(t)
	if c := frozenCondition(); s.deployment().Labels[v1alpha1.LabelKeyFreeze] != "" || c.Type != "" {
		t.Errorf("labels %v, condition %+v", s.deployment().Labels, c)
	}
}
