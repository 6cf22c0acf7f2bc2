package machine

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/drain"
	"github.com/millwright-dev/millwright/internal/lifecycle/outage"
	"github.com/millwright-dev/millwright/internal/lifecycle/replacement"
	"github.com/millwright-dev/millwright/internal/lifecycle/timeouts"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
)

// drainTimer decides when the drain of a Machine's node is forced.
type drainTimer struct {
	*Options
	replacements *replacement.Limiter
}

// timedDrain is a drain with a time limit.
type timedDrain struct {
	machine *v1alpha1.Machine
	// began is when the drain began.
	began time.Time
	// requested reports that a label forces the drain.
	requested bool
	// preserved reports that the Machine is preserved. Such a drain does not count against the limit on
	// forced drains after an outage.
	preserved bool
}

// forceDrain is the value of the label force-drain that forces a drain.
const forceDrain = "True"

// drainOfPreserved returns the drain of a Machine that failed and is preserved.
func drainOfPreserved(machine *v1alpha1.Machine, began time.Time) timedDrain {
	return timedDrain{machine: machine, began: began, requested: machine.Labels[v1alpha1.LabelKeyForceDrain] == forceDrain, preserved: true}
}

// drainOfUpdate returns the drain of a Machine whose node is updated in place.
func drainOfUpdate(machine *v1alpha1.Machine, began time.Time) timedDrain {
	return timedDrain{machine: machine, began: began, requested: machine.Labels[v1alpha1.LabelKeyForceDrain] == forceDrain}
}

// drainOfDeletion returns the drain of a Machine that is being deleted.
func drainOfDeletion(machine *v1alpha1.Machine) timedDrain {
	requested, _ := strconv.ParseBool(machine.Labels[v1alpha1.LabelKeyForceDeletion])
	return timedDrain{machine: machine, began: machine.DeletionTimestamp.Time, requested: requested}
}

// forcedByUser returns whether a user forces the drain, and why: with the label, or with a timeout of zero.
func (t drainTimer) forcedByUser(d timedDrain) drain.Force {
	switch {
	case d.requested:
		return drain.ForceRequested
	case timeouts.Drain(d.machine, t.Drain.Timeout).Duration <= 0:
		return drain.ForceDeadline
	default:
		return drain.NotForced
	}
}

// drainTiming is when a drain began, and whether its time limit or the node's conditions force it.
type drainTiming struct {
	// force is the reason why the drain is forced, if it is.
	force drain.Force
	// since is when the drain began or restarted.
	since time.Time
	// restarted is when the drain restarted, if that must be stored on the Machine; otherwise zero.
	restarted time.Time
	// wait is the time until the next check at the latest; zero if no check is needed.
	wait time.Duration
	// delayed is a message if the drain should be forced but may not be yet; otherwise empty.
	delayed string
}

// read returns the timing of a drain. Bad conditions of the node force the drain only after they have lasted
// long enough while a manager could observe them.
func (t drainTimer) read(ctx context.Context, s *scope, d timedDrain, conditions []corev1.NodeCondition) (drainTiming, error) {
	if force := t.forcedByUser(d); force != drain.NotForced {
		return drainTiming{force: force, since: d.began}, nil
	}
	count := t.confirmed(ctx, s, d)
	timing := drainTiming{since: count.since, restarted: t.unstoredRestart(d, count, s.now), wait: count.wait}
	if count.resumed.IsZero() {
		return timing, nil
	}
	conditions = lastingSince(conditions, count.resumed)
	timing.wait = flow.Sooner(timing.wait, drain.ForceDue(conditions, s.now))
	force := drain.ForceFor(false, conditions, s.now)
	if force == drain.NotForced && count.left <= 0 {
		force = drain.ForceDeadline
	}
	if force == drain.NotForced || d.preserved || !count.resumed.After(d.began) {
		timing.force = force
		return timing, nil
	}
	return timing, t.forceAfterOutage(ctx, d.machine, force, &timing)
}

// drainCount is the state of a drain's time limit.
type drainCount struct {
	// since is when the drain began or restarted. While an API server is unavailable, it is the current time.
	since time.Time
	// resumed is when a manager could drain again after the last interruption; zero while an API server is unavailable.
	resumed time.Time
	// left is the remaining time; it is not positive once the time has expired. wait is the time until the
	// next check at the latest.
	left, wait time.Duration
}

// confirmed returns the state of a drain's time limit. If the time has expired, it repeats the computation with
// up-to-date responses of the API servers.
func (t drainTimer) confirmed(ctx context.Context, s *scope, d timedDrain) drainCount {
	count := t.count(d, s.outages.See(ctx, t.Health.OutagePeriod), s.now)
	if count.left <= 0 {
		count = t.count(d, s.outages.See(ctx, outage.ResponseTimeout), s.now)
	}
	return count
}

// count restarts the time limit after each outage that this process observed. It restarts it only once for the
// start of a process, so that a manager that restarts repeatedly does not delay a drain forever.
func (t drainTimer) count(d timedDrain, seen outage.Seen, now time.Time) drainCount {
	timeout := timeouts.Drain(d.machine, t.Drain.Timeout).Duration
	if !seen.Responding {
		return drainCount{since: now, left: max(timeout, time.Second), wait: seen.Again}
	}
	since, restarted := timeouts.DrainRestarted(d.machine, d.began, now)
	begins := []time.Time{since, seen.Back}
	if !restarted {
		begins = append(begins, seen.Begun)
	}
	since = slices.MaxFunc(begins, time.Time.Compare)
	left := since.Add(timeout).Sub(now)
	return drainCount{
		since: since, resumed: slices.MaxFunc([]time.Time{seen.Begun, seen.Back}, time.Time.Compare),
		left: left, wait: max(min(left, seen.Again), 0),
	}
}

// unstoredRestart returns when a drain restarted, if the Machine does not store that yet and the time limit
// would have expired without the restart. It is zero for preserved Machines, whose restarts are not stored.
func (t drainTimer) unstoredRestart(d timedDrain, count drainCount, now time.Time) time.Time {
	stored, _ := timeouts.DrainRestarted(d.machine, d.began, now)
	expires := timeouts.Drain(d.machine, t.Drain.Timeout).Deadline(stored)
	if d.preserved || count.resumed.IsZero() || count.left <= 0 || now.Before(expires) {
		return time.Time{}
	}
	return count.since
}

// delayedForceRetry is the interval at which a drain that may not be forced yet is checked again.
const delayedForceRetry = 5 * time.Second

// forceAfterOutage forces a drain unless too many other drains of the pool are forced. After an outage, the time
// limits of many drains may expire together.
func (t drainTimer) forceAfterOutage(ctx context.Context, machine *v1alpha1.Machine, force drain.Force, timing *drainTiming) error {
	allowed, err := t.replacements.AllowForce(ctx, t.Client, machine, t.Health.MaxReplacements)
	switch {
	case err != nil:
		return err
	case allowed:
		timing.force = force
		return nil
	}
	timing.wait = flow.Sooner(timing.wait, delayedForceRetry)
	timing.delayed = fmt.Sprintf("The drain is not forced yet, although %s: other drains of %q are being forced after an outage; waiting for them", force, replacement.PoolOf(machine))
	return nil
}

// lastingSince returns a copy of the conditions in which no transition is before begin.
func lastingSince(conditions []corev1.NodeCondition, begin time.Time) []corev1.NodeCondition {
	lasting := slices.Clone(conditions)
	for i := range lasting {
		if lasting[i].LastTransitionTime.Time.Before(begin) {
			lasting[i].LastTransitionTime = metav1.NewTime(begin)
		}
	}
	return lasting
}
