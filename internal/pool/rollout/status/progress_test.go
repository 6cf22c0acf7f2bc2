package status

import (
	"errors"
	"slices"
	"testing"
	"time"

	"k8s.io/utils/ptr"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/pool/rollout"
	"github.com/millwright-dev/millwright/test/support/fixture"
)

// TestProgress_Deadline follows a rollout minute by minute. The deadline is three minutes after the last
// progress.
func TestProgress_Deadline(t *testing.T) {
	t.Parallel()
	deployment := fixture.Deployment(3, fixture.Rolling("1", "0"), fixture.OfClass("b"), recorded("1"), func(d *v1alpha1.MachineDeployment) {
		d.Spec.ProgressDeadlineSeconds = ptr.To(int32(180))
	})
	at := func(minute int, sets sets) (rollout.Facts, v1alpha1.MachineDeploymentStatus) {
		f := rollout.NewFacts(deployment, sets, fixture.Noon.Add(time.Duration(minute)*time.Minute))
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
		if got := DeadlineIn(f.Deployment, next, f.Now); got != step.again {
			t.Errorf("minute %d: the next check is in %s, want %s", step.minute, got, step.again)
		}
		deployment.Status = next
	}
}

// TestProgress_NewTemplateRestartsDeadline checks that a change that fixes a timed-out rollout has its own
// deadline, even before a set for it exists, and whatever else changes in the deployment.
func TestProgress_NewTemplateRestartsDeadline(t *testing.T) {
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
				deployment.Status = nextStatus(rollout.NewFacts(deployment, given.sets, fixture.Noon.Add(time.Duration(minute)*time.Minute)), nil)
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
			deployment.Generation++ // before the last deadline: the same message with a new deadline
			if got := look(12); got.Reason != v1alpha1.DeploymentReasonUpdated || !got.LastUpdateTime.Time.Equal(fixture.Noon.Add(12*time.Minute)) {
				t.Errorf("the next: %s since %s", got.Reason, got.LastUpdateTime)
			}
		})
	}
}

func TestProgress_WithoutDeadline(t *testing.T) {
	t.Parallel()
	deployment := fixture.Deployment(3, fixture.OfClass("b"))
	for _, hours := range []int{0, 1, 100} {
		f := rollout.NewFacts(deployment, sets{fixture.Set("a", 3), fixture.Set("b", 1, fixture.Reports(1, 0))}, fixture.Noon.Add(time.Duration(hours)*time.Hour))
		deployment.Status = nextStatus(f, nil)
		if got := Progress(deployment.Status); got.Reason != "MachineSetUpdated" || DeadlineIn(deployment, deployment.Status, f.Now) != 0 {
			t.Errorf("after %d h: %+v", hours, got)
		}
	}
}

// TestProgress_FailureIsNotProgress checks that failed writes do not extend the deadline of a rollout, and that a
// timed-out rollout stays timed out. The failure is reported anyway.
func TestProgress_FailureIsNotProgress(t *testing.T) {
	t.Parallel()
	leader := errors.New("Internal error occurred: etcdserver: leader changed")
	for name, steps := range map[string][]struct {
		minute  int
		failure error
		change  func(*v1alpha1.MachineDeployment, sets)
		reason  string
	}{
		"late before": {
			{-60, nil, nil, v1alpha1.DeploymentReasonUpdated}, {0, nil, nil, v1alpha1.DeploymentReasonTimedOut},
			{1, leader, nil, v1alpha1.DeploymentReasonTimedOut}, {2, nil, nil, v1alpha1.DeploymentReasonTimedOut}, {5, nil, nil, v1alpha1.DeploymentReasonTimedOut},
		},
		"late afterwards": {{0, nil, nil, v1alpha1.DeploymentReasonUpdated}, {1, leader, nil, v1alpha1.DeploymentReasonSetUpdateError}, {2, nil, nil, v1alpha1.DeploymentReasonUpdated}, {3, nil, nil, v1alpha1.DeploymentReasonTimedOut}},
		"late meanwhile":  {{0, nil, nil, v1alpha1.DeploymentReasonUpdated}, {2, leader, nil, v1alpha1.DeploymentReasonSetUpdateError}, {3, leader, nil, v1alpha1.DeploymentReasonTimedOut}, {4, nil, nil, v1alpha1.DeploymentReasonTimedOut}},
		"another message": {
			{0, nil, nil, v1alpha1.DeploymentReasonUpdated}, {1, leader, nil, v1alpha1.DeploymentReasonSetUpdateError}, {2, errors.New("the same"), nil, v1alpha1.DeploymentReasonSetUpdateError}, {3, nil, nil, v1alpha1.DeploymentReasonTimedOut},
		},
		"failing from the start": {{0, leader, nil, v1alpha1.DeploymentReasonSetUpdateError}, {2, nil, nil, v1alpha1.DeploymentReasonUpdated}, {3, nil, nil, v1alpha1.DeploymentReasonTimedOut}},
		"progress in spite of failures": {
			{0, nil, nil, v1alpha1.DeploymentReasonUpdated}, {2, leader, func(_ *v1alpha1.MachineDeployment, s sets) { fixture.Reports(1, 1)(s[1]) }, v1alpha1.DeploymentReasonSetUpdateError},
			{4, nil, nil, v1alpha1.DeploymentReasonUpdated}, {5, nil, nil, v1alpha1.DeploymentReasonTimedOut},
		},
		"a pause does not count": {
			{0, nil, nil, v1alpha1.DeploymentReasonUpdated}, {1, leader, func(d *v1alpha1.MachineDeployment, _ sets) { d.Spec.Paused = true }, v1alpha1.DeploymentReasonPaused},
			{60, nil, func(d *v1alpha1.MachineDeployment, _ sets) { d.Spec.Paused = false }, v1alpha1.DeploymentReasonResumed}, {62, nil, nil, v1alpha1.DeploymentReasonUpdated},
		},
	} {
		t.Run(name, func(t *testing.T) {
			deployment := fixture.Deployment(3, fixture.Rolling("1", "0"), fixture.OfClass("b"), func(d *v1alpha1.MachineDeployment) { d.Spec.ProgressDeadlineSeconds = ptr.To[int32](180) })
			all := sets{fixture.Set("a", 3), fixture.Set("b", 1, fixture.Reports(1, 0))}
			for _, step := range steps {
				if step.change != nil {
					step.change(deployment, all)
				}
				f := rollout.NewFacts(deployment, all, fixture.Noon.Add(time.Duration(step.minute)*time.Minute))
				deployment.Status = nextStatus(f, step.failure)
				if got := Progress(deployment.Status); got.Reason != step.reason {
					t.Errorf("minute %d: %s, want %s", step.minute, got.Reason, step.reason)
				}
				failed := step.failure != nil
				reported := failed && (contains(deployment.Status, v1alpha1.MachineDeploymentProgressing, step.failure.Error()) ||
					contains(deployment.Status, v1alpha1.MachineDeploymentReplicaFailure, step.failure.Error()))
				if failed != reported {
					t.Errorf("minute %d: the failure is not reported: %+v", step.minute, deployment.Status.Conditions)
				}
			}
		})
	}
}

// TestProgress_InitialFailureKeepsFullDeadline checks that a rollout that begins with a failure has its
// full deadline, even if the previous rollout had nearly timed out.
func TestProgress_InitialFailureKeepsFullDeadline(t *testing.T) {
	t.Parallel()
	deployment := fixture.Deployment(3, fixture.Rolling("1", "0"), fixture.OfClass("b"), func(d *v1alpha1.MachineDeployment) { d.Spec.ProgressDeadlineSeconds = ptr.To[int32](180) })
	all := sets{fixture.Set("a", 3), fixture.Set("b", 1, fixture.Reports(1, 0))}
	deployment.Status = nextStatus(rollout.NewFacts(deployment, all, fixture.Noon), nil)
	for _, minute := range []int{2, 4} {
		fixture.OfClass("c")(deployment)
		f := rollout.NewFacts(deployment, slices.Clone(all), fixture.Noon.Add(time.Duration(minute)*time.Minute))
		next := Next(rollout.New(f), rollout.Outcome{Created: fixture.Set("c", 0), Failure: errors.New("the scaling failed")})
		if got := Progress(next); got.Reason != v1alpha1.DeploymentReasonSetUpdateError || !got.LastUpdateTime.Time.Equal(f.Now) {
			t.Errorf("minute %d: %s since %s, want %s from then on", minute, got.Reason, got.LastUpdateTime, v1alpha1.DeploymentReasonSetUpdateError)
		}
	}
}
