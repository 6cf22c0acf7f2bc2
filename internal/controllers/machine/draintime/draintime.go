// Package draintime decides when the drain of a Machine's node is forced.
package draintime

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millwright-dev/millwright/api/machine/v1alpha1"
	"github.com/millwright-dev/millwright/internal/lifecycle/drain"
	"github.com/millwright-dev/millwright/internal/lifecycle/outage"
	"github.com/millwright-dev/millwright/internal/lifecycle/replacement"
	"github.com/millwright-dev/millwright/internal/lifecycle/timeouts"
	"github.com/millwright-dev/millwright/internal/reconcile/flow"
)

// Drainer drains the nodes whose drains are timed. It is implemented by drain.Drainer.
type Drainer interface {
	Drain(ctx context.Context, req drain.Request) (drain.Report, error)
	Forget(machine types.NamespacedName)
}

// Timer times drains. All fields are required.
type Timer struct {
	// Cache reads the Machines of a pool.
	Cache        client.Reader
	Outages      *outage.Monitor
	Replacements *replacement.Limiter
	// Timeout is that of the manager's flag; a Machine may have its own.
	Timeout time.Duration
	// OutagePeriod is how old answers of the API servers may be while time is left.
	OutagePeriod time.Duration
	// MaxForced is how many Machines of a pool may be forced at the same time after an outage.
	MaxForced intstr.IntOrString
}

// Reading is where a drain stands.
type Reading struct {
	// Force is why the drain is forced.
	Force drain.Force
	// Since is when the drain began, or began anew.
	Since time.Time
	// Note is when the drain began anew, if that has to be stored on the Machine; else zero, as for
	// Machines that are preserved.
	Note time.Time
	// Wake is when to look again at the latest; zero if there is no such time.
	Wake time.Duration
	// Delayed is a message if the drain is not forced although it should be; else empty.
	Delayed string
}

// count is the state of a drain's time.
type count struct {
	// since is when it began, or began anew; now while an API server is away.
	since time.Time
	// resumed is when nobody could drain for the last time; zero while an API server is away.
	resumed time.Time
	// left is not positive once its time is over; again is when to look again at the latest.
	left, again time.Duration
}

// Drain is a drain that is timed.
type Drain struct {
	Machine *v1alpha1.Machine
	// Begun is when it began.
	Begun time.Time
	// Requested reports that a label forces it.
	Requested bool
	// Kept reports that no deletion follows, so that it takes no place of those that are forced after
	// an outage.
	Kept bool
}

// OfPreserved is the drain of a Machine that failed and is preserved.
func OfPreserved(machine *v1alpha1.Machine, begun time.Time) Drain {
	return Drain{Machine: machine, Begun: begun, Requested: machine.Labels[v1alpha1.LabelKeyForceDrain] == forceDrain, Kept: true}
}

// OfUpdate is the drain of a Machine whose node is updated in place.
func OfUpdate(machine *v1alpha1.Machine, begun time.Time) Drain {
	return Drain{Machine: machine, Begun: begun, Requested: machine.Labels[v1alpha1.LabelKeyForceDrain] == forceDrain}
}

// forceDrain is the value of the label force-drain.
const forceDrain = "True"

// OfDeletion is the drain of a Machine that is being deleted.
func OfDeletion(machine *v1alpha1.Machine) Drain {
	requested, _ := strconv.ParseBool(machine.Labels[v1alpha1.LabelKeyForceDeletion])
	return Drain{Machine: machine, Begun: machine.DeletionTimestamp.Time, Requested: requested}
}

// Read times a drain. The node's conditions force it when they have lasted while somebody could see
// them.
func (t Timer) Read(ctx context.Context, d Drain, conditions []corev1.NodeCondition, now time.Time) (Reading, error) {
	if force := d.Asked(t.Timeout); force != drain.NotForced {
		return Reading{Force: force, Since: d.Begun}, nil
	}
	counted := t.confirmed(ctx, d, now)
	read := Reading{Since: counted.since, Note: t.note(d, counted, now), Wake: counted.again}
	if counted.resumed.IsZero() {
		return read, nil
	}
	conditions = lastingSince(conditions, counted.resumed)
	read.Wake = flow.Sooner(read.Wake, drain.ForceDue(conditions, now))
	force := drain.ForceFor(false, conditions, now)
	if force == drain.NotForced && counted.left <= 0 {
		force = drain.ForceDeadline
	}
	if force == drain.NotForced || d.Kept || !counted.resumed.After(d.Begun) {
		read.Force = force
		return read, nil
	}
	return read, t.forceAfterOutage(ctx, d.Machine, force, &read)
}

// Asked returns whether a user forces the drain, by the label or by a timeout of zero. flag is the
// timeout of the manager's flag.
func (d Drain) Asked(flag time.Duration) drain.Force {
	switch {
	case d.Requested:
		return drain.ForceRequested
	case timeouts.Drain(d.Machine, flag).Duration <= 0:
		return drain.ForceDeadline
	default:
		return drain.NotForced
	}
}

// confirmed counts a drain. That its time is over is confirmed by answers of the API servers.
func (t Timer) confirmed(ctx context.Context, d Drain, now time.Time) count {
	counted := t.count(d, t.Outages.See(ctx, t.OutagePeriod), now)
	if counted.left <= 0 {
		counted = t.count(d, t.Outages.See(ctx, outage.AnswerTimeout), now)
	}
	return counted
}

// count begins anew after each outage that this process saw, but for its own start only once, so
// that a manager that restarts again and again does not put a drain off for ever.
func (t Timer) count(d Drain, seen outage.Seen, now time.Time) count {
	timeout := timeouts.Drain(d.Machine, t.Timeout).Duration
	if !seen.Answering {
		return count{since: now, left: max(timeout, time.Second), again: seen.Again}
	}
	since, anew := timeouts.DrainAnew(d.Machine, d.Begun, now)
	begins := []time.Time{since, seen.Back}
	if !anew {
		begins = append(begins, seen.Begun)
	}
	since = slices.MaxFunc(begins, time.Time.Compare)
	left := since.Add(timeout).Sub(now)
	return count{
		since: since, resumed: slices.MaxFunc([]time.Time{seen.Begun, seen.Back}, time.Time.Compare),
		left: left, again: max(min(left, seen.Again), 0),
	}
}

// note returns when a drain has begun anew, once its time would be over otherwise.
func (t Timer) note(d Drain, counted count, now time.Time) time.Time {
	noted, _ := timeouts.DrainAnew(d.Machine, d.Begun, now)
	over := timeouts.Drain(d.Machine, t.Timeout).Ends(noted)
	if d.Kept || counted.resumed.IsZero() || counted.left <= 0 || now.Before(over) {
		return time.Time{}
	}
	return counted.since
}

// forceAfterOutage forces a drain unless too many others of the pool are: after an outage their time
// may be over together.
func (t Timer) forceAfterOutage(ctx context.Context, machine *v1alpha1.Machine, force drain.Force, read *Reading) error {
	allowed, err := t.Replacements.AllowForce(ctx, t.Cache, machine, t.MaxForced)
	switch {
	case err != nil:
		return err
	case allowed:
		read.Force = force
		return nil
	}
	read.Wake = flow.Sooner(read.Wake, delay)
	read.Delayed = fmt.Sprintf("The drain is not forced yet, although %s: those of other machines of %q are, and managers could not drain for a while", force, replacement.PoolOf(machine))
	return nil
}

// delay is when a drain that may not be forced yet is looked at again.
const delay = 5 * time.Second

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
