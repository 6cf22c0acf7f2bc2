package departure

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/millwright-dev/millwright/internal/vm/hypervisor/controller"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/handover"
	"github.com/millwright-dev/millwright/internal/vm/hypervisor/qemu"
	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
)

const (
	pausePolicy  = vmpb.MigrationLimits_TIMEOUT_POLICY_PAUSE
	cancelPolicy = vmpb.MigrationLimits_TIMEOUT_POLICY_CANCEL
)

func limited(timeout time.Duration, policy vmpb.MigrationLimits_TimeoutPolicy) *vmpb.MigrationLimits {
	return &vmpb.MigrationLimits{CompletionTimeout: durationpb.New(timeout), TimeoutPolicy: policy}
}

func TestPace_Next(t *testing.T) {
	const never = -1
	for name, test := range map[string]struct {
		limits  *vmpb.MigrationLimits
		elapsed time.Duration
		forceAt time.Duration // never if the process does not terminate
		want    paceAction
	}{
		"without limits":                     {nil, time.Hour, never, keepCopying},
		"without limits, too early to force": {nil, time.Hour, time.Hour + 1, keepCopying},
		"without limits, time to force":      {nil, time.Hour, time.Hour, forceRest},
		"pause, before the timeout":          {limited(time.Minute, pausePolicy), time.Minute - 1, never, keepCopying},
		"pause, after the timeout":           {limited(time.Minute, pausePolicy), time.Minute, never, forceRest},
		"pause, after twice the timeout":     {limited(time.Minute, pausePolicy), 2 * time.Minute, never, giveUp},
		"pause, terminating, in time":        {limited(time.Minute, pausePolicy), 0, time.Hour, keepCopying},
		"pause, terminating, timed out":      {limited(time.Minute, pausePolicy), time.Minute, time.Hour, forceRest},
		"pause, terminating, twice":          {limited(time.Minute, pausePolicy), 2 * time.Minute, time.Hour, forceRest},
		"pause, terminating, time to force":  {limited(time.Minute, pausePolicy), time.Second, time.Second, forceRest},
		"cancel, before the timeout":         {limited(time.Minute, cancelPolicy), time.Minute - 1, never, keepCopying},
		"cancel, after the timeout":          {limited(time.Minute, cancelPolicy), time.Minute, never, giveUp},
		"cancel, terminating, timed out":     {limited(time.Minute, cancelPolicy), time.Minute, time.Hour, keepCopying},
		"cancel, terminating, time to force": {limited(time.Minute, cancelPolicy), time.Hour, time.Hour, forceRest},
	} {
		t.Run(name, func(t *testing.T) {
			begun := time.Now()
			var forceAt *time.Time
			if test.forceAt != never {
				at := begun.Add(test.forceAt)
				forceAt = &at
			}
			if got := paceOf(test.limits, begun).next(begun.Add(test.elapsed), forceAt); got != test.want {
				t.Errorf("action = %q, want %q", got, test.want)
			}
		})
	}
}

// busy is a machine whose guest writes memory faster than it is sent. The guest is stopped only when the copy is
// forced, or never if it writes too much.
type busy struct {
	copier
	never  bool
	to     qemu.Destination
	forced time.Duration // after which time the copy was forced
}

func (b *busy) Send(ctx context.Context, to qemu.Destination, progress func(qemu.Progress)) error {
	b.to = to
	begun := time.Now()
	for done := uint64(1); ; done++ {
		if b.forced == 0 && to.Force() {
			b.forced = time.Since(begun)
		}
		if b.forced > 0 && !b.never {
			progress(qemu.Progress{Done: done, Total: done})
			return nil
		}
		progress(qemu.Progress{Done: done, Total: done, Diverging: done > 2})
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func TestDeparture_CopyDoesNotConverge(t *testing.T) {
	for name, test := range map[string]struct {
		limits  *vmpb.MigrationLimits
		never   bool          // see busy
		leave   time.Duration // when the copy must be forced because the process terminates; 0 for never
		forced  time.Duration // 0 for never
		failed  time.Duration
		reports []vmpb.ReportStateRequest_Migration_Convergence
	}{
		"pause":                  {limits: limited(time.Minute, pausePolicy), forced: time.Minute, reports: []vmpb.ReportStateRequest_Migration_Convergence{0, 1, 2}},
		"pause in vain":          {limits: limited(time.Minute, pausePolicy), never: true, forced: time.Minute, failed: 2 * time.Minute, reports: []vmpb.ReportStateRequest_Migration_Convergence{0, 1, 2}},
		"cancel":                 {limits: limited(time.Minute, cancelPolicy), failed: time.Minute, reports: []vmpb.ReportStateRequest_Migration_Convergence{0, 1}},
		"cancel, while leaving":  {limits: limited(time.Minute, cancelPolicy), leave: time.Hour, forced: time.Hour, reports: []vmpb.ReportStateRequest_Migration_Convergence{0, 1, 2}},
		"no limit while leaving": {leave: time.Hour, forced: time.Hour, reports: []vmpb.ReportStateRequest_Migration_Convergence{0, 1, 2}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d, _ := newDeparture(t, &script{})
				machine := &busy{copier: copier{finish: untilCanceled}, never: test.never}
				var last controller.Migration
				var reports []vmpb.ReportStateRequest_Migration_Convergence
				d.Machine, d.Report = machine, func(m controller.Migration) {
					if len(reports) == 0 || last.Convergence != m.Convergence {
						reports = append(reports, m.Convergence)
					}
					last = m
				}
				d.attempt.agreed, d.attempt.limits = &vmpb.MigrationProtocol_QemuNBD{NegotiatedEndpoint: "tcp:target:1"}, test.limits
				if test.leave > 0 {
					d.Leave(time.Now(), time.Now().Add(test.leave))
				}
				reach(d, handover.Ordered, handover.TargetFound, handover.Agreed)
				begun := time.Now()
				d.begin(d.copy)
				result := <-d.Results()
				if machine.forced != test.forced {
					t.Errorf("forced after %v, want %v", machine.forced, test.forced)
				}
				if test.failed > 0 && (result.event != handover.Failed || time.Since(begun) != test.failed || !last.TimedOut) {
					t.Errorf("event %q after %v, reported %+v; want a failure after %v", result.event, time.Since(begun), last, test.failed)
				}
				if test.failed == 0 && (result.event != handover.GuestStopped || last.TimedOut) {
					t.Errorf("event %q, reported %+v; want the guest stopped", result.event, last)
				}
				if !slices.Equal(reports, test.reports) {
					t.Errorf("reported %v, want %v", reports, test.reports)
				}
			})
		})
	}
}

// The controller's limits replace those of the hypervisor.
func TestDeparture_LimitsOfController(t *testing.T) {
	for name, test := range map[string]struct {
		limits *vmpb.MigrationLimits
		want   qemu.Destination
	}{
		"none": {nil, qemu.Destination{Bandwidth: 7, AutoConverge: true}},
		"all": {&vmpb.MigrationLimits{Bandwidth: 5, Downtime: durationpb.New(time.Second), NoAutoConverge: true},
			qemu.Destination{Bandwidth: 5, Downtime: time.Second}},
	} {
		t.Run(name, func(t *testing.T) {
			d, _ := newDeparture(t, &script{})
			d.Bandwidth = 7
			d.attempt.agreed, d.attempt.limits = &vmpb.MigrationProtocol_QemuNBD{}, test.limits
			got := d.destination()
			if got.Bandwidth != test.want.Bandwidth || got.Downtime != test.want.Downtime || got.AutoConverge != test.want.AutoConverge {
				t.Errorf("destination = %+v, want %+v", got, test.want)
			}
			if got.ForcedDowntime <= 0 || got.ForcedDowntime >= d.Timing.Rest {
				t.Errorf("forced downtime = %v, but the guest continues after %v", got.ForcedDowntime, d.Timing.Rest)
			}
		})
	}
}
