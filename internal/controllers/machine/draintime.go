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
)

// drainTime is where the drain of a Machine stands in time.
type drainTime struct {
	// since is when it began, or began anew; now while an API server is away.
	since time.Time
	// resumed is when nobody could drain for the last time; zero while an API server is away.
	resumed time.Time
	// left is not positive once its time is over; again is when to look again at the latest.
	left, again time.Duration
}

// readDrainTime times a drain. That its time is over is confirmed by answers of the API servers.
func (c *Controller) readDrainTime(ctx context.Context, s *scope) (drainTime, error) {
	read := c.countDrain(s, c.outages.See(ctx, c.Health.OutagePeriod))
	if read.left <= 0 {
		read = c.countDrain(s, c.outages.See(ctx, outage.Patience))
	}
	return read, c.noteDrain(ctx, s, read)
}

// countDrain begins anew after each outage that this process saw, but for its own start only once, so
// that a manager that restarts again and again does not put a drain off for ever.
func (c *Controller) countDrain(s *scope, seen outage.Seen) drainTime {
	timeout := timeouts.Drain(s.machine, c.Drain.Timeout).Duration
	if !seen.Answering {
		return drainTime{since: s.now, left: max(timeout, time.Second), again: seen.Again}
	}
	since, anew := timeouts.DrainSince(s.machine, s.now)
	begins := []time.Time{since, seen.Back}
	if !anew {
		begins = append(begins, seen.Begun)
	}
	since = slices.MaxFunc(begins, time.Time.Compare)
	left := since.Add(timeout).Sub(s.now)
	return drainTime{
		since: since, resumed: slices.MaxFunc([]time.Time{seen.Begun, seen.Back}, time.Time.Compare),
		left: left, again: max(min(left, seen.Again), 0),
	}
}

// noteDrain stores when a drain has begun anew, once its time would be over otherwise.
func (c *Controller) noteDrain(ctx context.Context, s *scope, read drainTime) error {
	noted, _ := timeouts.DrainSince(s.machine, s.now)
	over := timeouts.Drain(s.machine, c.Drain.Timeout).Ends(noted)
	if read.resumed.IsZero() || read.left <= 0 || s.now.Before(over) {
		return nil
	}
	return c.patchMachine(ctx, s, func(machine *v1alpha1.Machine) {
		metav1.SetMetaDataAnnotation(&machine.ObjectMeta, v1alpha1.AnnotationKeyDrainSince, read.since.UTC().Format(time.RFC3339))
	})
}

// timeDrain sets when the drain began, and why it is forced. The node's conditions force it when they
// have lasted while somebody could see them.
func (c *Controller) timeDrain(ctx context.Context, s *scope, conditions []corev1.NodeCondition) error {
	if s.force = c.forceAsked(s); s.force != drain.NotForced || c.Drain.Drainer == nil {
		s.drainSince = s.machine.DeletionTimestamp.Time
		return nil
	}
	read, err := c.readDrainTime(ctx, s)
	if err != nil {
		return err
	}
	s.drainSince = read.since
	s.wakeWithin(read.again)
	if read.resumed.IsZero() {
		return nil
	}
	conditions = lastingSince(conditions, read.resumed)
	s.wakeWithin(drain.ForceDue(conditions, s.now))
	force := drain.ForceFor(false, conditions, s.now)
	if force == drain.NotForced && read.left <= 0 {
		force = drain.ForceDeadline
	}
	if force == drain.NotForced || !read.resumed.After(s.machine.DeletionTimestamp.Time) {
		s.force = force
		return nil
	}
	return c.forceAfterOutage(ctx, s, force)
}

// forceAsked returns whether a user forces the drain, by the label or by a timeout of zero.
func (c *Controller) forceAsked(s *scope) drain.Force {
	requested, _ := strconv.ParseBool(s.machine.Labels[v1alpha1.LabelKeyForceDeletion])
	switch {
	case requested:
		return drain.ForceRequested
	case timeouts.Drain(s.machine, c.Drain.Timeout).Duration <= 0:
		return drain.ForceDeadline
	default:
		return drain.NotForced
	}
}

// forceAfterOutage forces a drain unless too many others of the pool are: after an outage their time
// may be over together.
func (c *Controller) forceAfterOutage(ctx context.Context, s *scope, force drain.Force) error {
	allowed, err := c.replacements.AllowForce(ctx, c.Client, s.machine, c.Health.MaxReplacements)
	switch {
	case err != nil:
		return err
	case allowed:
		s.force = force
		return nil
	}
	s.wakeWithin(replacementRetry)
	s.warnOnce(topicForce, reasonDelayed, fmt.Sprintf("The drain is not forced yet, although %s: those of other machines of %q are, and managers could not drain for a while", force, replacement.PoolOf(s.machine)), nil)
	return nil
}

const topicForce = "force"

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
