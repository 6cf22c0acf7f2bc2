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

// timedDrain is a drain whose time is limited.
type timedDrain struct {
	machine *v1alpha1.Machine
	// began is when the drain began.
	began time.Time
	// requested reports that a label forces the drain.
	requested bool
	// preserved reports that no deletion follows, so that the drain does not count against the limit of
	// drains that are forced after an outage.
	preserved bool
}

// forceDrain is the value of the label force-drain.
const forceDrain = "True"

// drainOfPreserved is the drain of a Machine that failed and is preserved.
func drainOfPreserved(machine *v1alpha1.Machine, began time.Time) timedDrain {
	return timedDrain{machine: machine, began: began, requested: machine.Labels[v1alpha1.LabelKeyForceDrain] == forceDrain, preserved: true}
}

// drainOfUpdate is the drain of a Machine whose node is updated in place.
func drainOfUpdate(machine *v1alpha1.Machine, began time.Time) timedDrain {
	return timedDrain{machine: machine, began: began, requested: machine.Labels[v1alpha1.LabelKeyForceDrain] == forceDrain}
}

// drainOfDeletion is the drain of a Machine that is being deleted.
func drainOfDeletion(machine *v1alpha1.Machine) timedDrain {
	requested, _ := strconv.ParseBool(machine.Labels[v1alpha1.LabelKeyForceDeletion])
	return timedDrain{machine: machine, began: machine.DeletionTimestamp.Time, requested: requested}
}

// forcedByUser returns why a user forces the drain: by the label, or by a timeout of zero.
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

// timing is the state of the time of a drain.
type timing struct {
	// force is why the drain is forced.
	force drain.Force
	// since is when the drain began or restarted.
	since time.Time
	// restarted is when the drain restarted, if that must be stored on the Machine; else zero.
	restarted time.Time
	// wait is when to check again at the latest; zero if there is no such time.
	wait time.Duration
	// delayed is a message if the drain should be forced but may not be yet; else empty.
	delayed string
}

// read returns the timing of a drain. The node's conditions force it once they have lasted while a manager
// could see them.
func (t drainTimer) read(ctx context.Context, s *scope, d timedDrain, conditions []corev1.NodeCondition) (timing, error) {
	if force := t.forcedByUser(d); force != drain.NotForced {
		return timing{force: force, since: d.began}, nil
	}
	count := t.confirmed(ctx, s, d)
	read := timing{since: count.since, restarted: t.unstoredRestart(d, count, s.now), wait: count.wait}
	if count.resumed.IsZero() {
		return read, nil
	}
	conditions = lastingSince(conditions, count.resumed)
	read.wait = flow.Sooner(read.wait, drain.ForceDue(conditions, s.now))
	force := drain.ForceFor(false, conditions, s.now)
	if force == drain.NotForced && count.left <= 0 {
		force = drain.ForceDeadline
	}
	if force == drain.NotForced || d.preserved || !count.resumed.After(d.began) {
		read.force = force
		return read, nil
	}
	return read, t.forceAfterOutage(ctx, d.machine, force, &read)
}

// drainCount counts the time of a drain.
type drainCount struct {
	// since is when the drain began or restarted; now while an API server is unavailable.
	since time.Time
	// resumed is when a manager could drain again after the last interruption; zero while an API server is unavailable.
	resumed time.Time
	// left is not positive once the time has expired; wait is when to check again at the latest.
	left, wait time.Duration
}

// confirmed counts the time of a drain. Current answers of the API servers confirm that it has expired.
func (t drainTimer) confirmed(ctx context.Context, s *scope, d timedDrain) drainCount {
	count := t.count(d, s.outages.See(ctx, t.Health.OutagePeriod), s.now)
	if count.left <= 0 {
		count = t.count(d, s.outages.See(ctx, outage.AnswerTimeout), s.now)
	}
	return count
}

// count restarts the time after each outage that this process saw, but only once for the process's own
// start, so that a manager that restarts again and again does not delay a drain for ever.
func (t drainTimer) count(d timedDrain, seen outage.Seen, now time.Time) drainCount {
	timeout := timeouts.Drain(d.machine, t.Drain.Timeout).Duration
	if !seen.Answering {
		return drainCount{since: now, left: max(timeout, time.Second), wait: seen.Again}
	}
	since, restarted := timeouts.DrainAnew(d.machine, d.began, now)
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

// unstoredRestart returns when a drain restarted, once its time would have expired otherwise. It is zero
// for preserved Machines, whose restarts are not stored.
func (t drainTimer) unstoredRestart(d timedDrain, count drainCount, now time.Time) time.Time {
	stored, _ := timeouts.DrainAnew(d.machine, d.began, now)
	expires := timeouts.Drain(d.machine, t.Drain.Timeout).Ends(stored)
	if d.preserved || count.resumed.IsZero() || count.left <= 0 || now.Before(expires) {
		return time.Time{}
	}
	return count.since
}

// delayedForceRetry is when a drain that may not be forced yet is checked again.
const delayedForceRetry = 5 * time.Second

// forceAfterOutage forces a drain unless too many others of the pool are forced: after an outage the time
// of many drains may expire together.
func (t drainTimer) forceAfterOutage(ctx context.Context, machine *v1alpha1.Machine, force drain.Force, read *timing) error {
	allowed, err := t.replacements.AllowForce(ctx, t.Client, machine, t.Health.MaxReplacements)
	switch {
	case err != nil:
		return err
	case allowed:
		read.force = force
		return nil
	}
	read.wait = flow.Sooner(read.wait, delayedForceRetry)
	read.delayed = fmt.Sprintf("The drain is not forced yet, although %s: those of other machines of %q are, and managers could not drain for a while", force, replacement.PoolOf(machine))
	return nil
}

// lastingSince returns the conditions as if none had begun before a time.
func lastingSince(conditions []corev1.NodeCondition, begin time.Time) []corev1.NodeCondition {
	lasting := slices.Clone(conditions)
	for i := range lasting {
		if lasting[i].LastTransitionTime.Time.Before(begin) {
			lasting[i].LastTransitionTime = metav1.NewTime(begin)
		}
	}
	return lasting
}
