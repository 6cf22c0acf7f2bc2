package status

import (
	"testing"
	"time"

	"k8s.io/utils/ptr"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/controllers/machinedeployment/planner"
	"github.com/millwright-dev/millwright/test/fixture"
)

// TestProgressDeadline plays a rollout minute by minute. The deadline is three minutes after
// the last progress.
func TestProgressDeadline(t *testing.T) {
	t.Parallel()
	deployment := fixture.Deployment(3, fixture.Rolling("1", "0"), fixture.OfClass("b"), recorded("1"), func(d *v1alpha1.MachineDeployment) {
		d.Spec.ProgressDeadlineSeconds = ptr.To(int32(180))
	})
	at := func(minute int, sets sets) (planner.Facts, v1alpha1.MachineDeploymentStatus) {
		f := planner.NewFacts(deployment, sets, fixture.Noon.Add(time.Duration(minute)*time.Minute))
		return f, nextStatus(f, nil)
	}
	for _, step := range []struct {
		minute int
		sets   sets
		paused bool
		reason string
		again  time.Duration
	}{
		{0, sets{fixture.Set("a", 3), fixture.Set("b", 1, fixture.Reports(1, 0))}, false, "MachineSetUpdated", 3*time.Minute + time.Second},
		{2, sets{fixture.Set("a", 3), fixture.Set("b", 1, fixture.Reports(1, 0))}, false, "MachineSetUpdated", time.Minute + time.Second},
		{3, sets{fixture.Set("a", 3), fixture.Set("b", 1, fixture.Reports(1, 0))}, false, "ProgressDeadlineExceeded", 0},
		{9, sets{fixture.Set("a", 3), fixture.Set("b", 1, fixture.Reports(1, 0))}, false, "ProgressDeadlineExceeded", 0},
		{10, sets{fixture.Set("a", 3), fixture.Set("b", 1)}, false, "MachineSetUpdated", 3*time.Minute + time.Second},
		{12, sets{fixture.Set("a", 2), fixture.Set("b", 1)}, false, "MachineSetUpdated", 3*time.Minute + time.Second}, // fewer old ones
		{14, sets{fixture.Set("a", 2), fixture.Set("b", 1)}, true, "DeploymentPaused", 0},
		{60, sets{fixture.Set("a", 2), fixture.Set("b", 1)}, false, "DeploymentResumed", 3*time.Minute + time.Second},
		{62, sets{fixture.Set("a", 2), fixture.Set("b", 1)}, false, "MachineSetUpdated", 3*time.Minute + time.Second},
		{66, sets{fixture.Set("a", 0), fixture.Set("b", 3)}, false, "NewMachineSetAvailable", 0},
		{99, sets{fixture.Set("a", 0), fixture.Set("b", 3, fixture.Reports(3, 2))}, false, "NewMachineSetAvailable", 0},
	} {
		deployment.Spec.Paused = step.paused
		f, next := at(step.minute, step.sets)
		if got := Progress(next).Reason; got != step.reason {
			t.Errorf("minute %d: %s, want %s", step.minute, got, step.reason)
		}
		if got := DeadlineIn(f, next); got != step.again {
			t.Errorf("minute %d: it looks again in %s, want %s", step.minute, got, step.again)
		}
		deployment.Status = next
	}
}

// TestANewTemplateIsNotLateFromTheStart: what fixes a rollout that was late has a deadline of
// its own, also before there is a set for it, and whatever else the deployment wants changed.
func TestANewTemplateIsNotLateFromTheStart(t *testing.T) {
	t.Parallel()
	for strategy, given := range map[string]struct {
		change change
		sets   sets
	}{
		"Recreate, old machines are left":     {fixture.Recreate, sets{fixture.Set("a", 0, fixture.Reports(1, 0))}},
		"RollingUpdate, a set is not settled": {fixture.Rolling("1", "0"), sets{fixture.Set("a", 3), fixture.Set("x", 1, fixture.Reports(1, 0), fixture.Unsettled)}},
	} {
		t.Run(strategy, func(t *testing.T) {
			deployment := fixture.Deployment(3, given.change, fixture.OfClass("b"), func(d *v1alpha1.MachineDeployment) {
				d.Spec.ProgressDeadlineSeconds = ptr.To(int32(180))
			})
			look := func(minute int) v1alpha1.MachineDeploymentCondition {
				deployment.Status = nextStatus(planner.NewFacts(deployment, given.sets, fixture.Noon.Add(time.Duration(minute)*time.Minute)), nil)
				return Progress(deployment.Status)
			}
			look(-60)
			if got := look(0); got.Reason != v1alpha1.DeploymentReasonTimedOut {
				t.Fatalf("before: %s", got.Reason)
			}
			deployment.Generation++
			for _, step := range []struct {
				minute int
				reason string
			}{{1, v1alpha1.DeploymentReasonUpdated}, {3, v1alpha1.DeploymentReasonUpdated}, {4, v1alpha1.DeploymentReasonTimedOut}} {
				if got := look(step.minute); got.Reason != step.reason {
					t.Errorf("minute %d: %s, want %s", step.minute, got.Reason, step.reason)
				}
			}
			deployment.Generation++
			look(10)
			deployment.Generation++ // while the last one still has time: the same words, and three minutes again
			if got := look(12); got.Reason != v1alpha1.DeploymentReasonUpdated || !got.LastUpdateTime.Time.Equal(fixture.Noon.Add(12*time.Minute)) {
				t.Errorf("the next: %s since %s", got.Reason, got.LastUpdateTime)
			}
		})
	}
}

func TestWithoutADeadlineNothingIsLate(t *testing.T) {
	t.Parallel()
	deployment := fixture.Deployment(3, fixture.OfClass("b"))
	for _, hours := range []int{0, 1, 100} {
		f := planner.NewFacts(deployment, sets{fixture.Set("a", 3), fixture.Set("b", 1, fixture.Reports(1, 0))}, fixture.Noon.Add(time.Duration(hours)*time.Hour))
		deployment.Status = nextStatus(f, nil)
		if got := Progress(deployment.Status); got.Reason != "MachineSetUpdated" || DeadlineIn(f, deployment.Status) != 0 {
			t.Errorf("after %d h: %+v", hours, got)
		}
	}
}
