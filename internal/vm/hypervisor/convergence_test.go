package hypervisor_test

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	vmpb "github.com/millwright-dev/millwright/proto/metropolis/vm"
	"github.com/millwright-dev/millwright/test/support/tier"
)

const (
	convergenceFailing = vmpb.ReportStateRequest_Migration_CONVERGENCE_FAILING
	forced             = vmpb.ReportStateRequest_Migration_CONVERGENCE_FORCED
)

// diverging limits migrations so that the copy never converges: it takes two seconds to send the memory that the guest
// writes again and again, and in the permitted downtime, less than one page can be sent.
func diverging(timeout time.Duration, policy vmpb.MigrationLimits_TimeoutPolicy) *vmpb.MigrationLimits {
	limits := &vmpb.MigrationLimits{Bandwidth: 256 << 10, Downtime: durationpb.New(time.Millisecond), NoAutoConverge: true, TimeoutPolicy: policy}
	if timeout > 0 {
		limits.CompletionTimeout = durationpb.New(timeout)
	}
	return limits
}

// newDiverging runs a guest whose memory changes faster than it may be copied, and names a target. The disks are
// shared, so that only the memory is copied.
func newDiverging(t *testing.T, limits *vmpb.MigrationLimits) (h *testCluster, source *member, here *counting, target *member) {
	t.Helper()
	h = newTestCluster(t)
	h.shared, h.eager, h.dirties, h.limits = true, true, true, limits
	source = h.source()
	here = source.counts()
	here.numbers(10)
	target = h.target("web-2")
	h.names(func(int) *member { return target })
	return h, source, here, target
}

// wantConvergence checks the convergence in the source's reports.
func (h *testCluster) wantConvergence(pod string, want ...vmpb.ReportStateRequest_Migration_Convergence) {
	h.t.Helper()
	seen := map[vmpb.ReportStateRequest_Migration_Convergence]bool{}
	last := vmpb.ReportStateRequest_Migration_CONVERGENCE_UNKNOWN
	for _, report := range h.controller.Reports() {
		if report.GetUs().GetPodName() != pod || report.GetMigration() == nil {
			continue
		}
		is := report.GetMigration().GetConvergence()
		if is < last {
			h.t.Errorf("%s reported %s after %s", pod, is, last)
		}
		last, seen[is] = is, true
	}
	for _, is := range want {
		if !seen[is] {
			h.t.Errorf("%s did not report %s", pod, is)
		}
	}
}

// A copy that does not converge within its timeout is forced to complete, with the policy Pause. With any policy, this
// happens before the process must terminate.
func TestMigration_ForcedAfterTimeout(t *testing.T) {
	tier.All(t)
	t.Parallel()
	const forever = time.Hour
	for name, test := range map[string]struct {
		limits *vmpb.MigrationLimits
		signal bool
	}{
		"on request":                              {diverging(10*time.Second, vmpb.MigrationLimits_TIMEOUT_POLICY_PAUSE), false},
		"after SIGTERM, without a timeout":        {diverging(0, vmpb.MigrationLimits_TIMEOUT_POLICY_PAUSE), true},
		"after SIGTERM, with a long timeout":      {diverging(forever, vmpb.MigrationLimits_TIMEOUT_POLICY_PAUSE), true},
		"after SIGTERM, although it would cancel": {diverging(time.Second, vmpb.MigrationLimits_TIMEOUT_POLICY_CANCEL), true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h, source, here, target := newDiverging(t, test.limits)
			if test.signal {
				source.term()
			} else {
				h.controller.Change(func(a *authority) { a.migrate = true })
			}
			h.awaitPhase(done)
			here.toTheEnd()
			source.wantEnd(vmpb.EndTerminated)
			h.wantConvergence("web-1", forced)
			onTarget := here.continuesOn(target)
			onTarget.keepsRunning()
			target.kill()
			target.wantAll(onTarget.last)
		})
	}
}

// With the policy Cancel, a copy that does not complete within its timeout is given up, and the guest keeps running.
func TestMigration_CancelledAfterTimeout(t *testing.T) {
	tier.All(t)
	t.Parallel()
	h, source, here, target := newDiverging(t, diverging(5*time.Second, vmpb.MigrationLimits_TIMEOUT_POLICY_CANCEL))
	h.controller.Change(func(a *authority) { a.migrate = true })
	report := h.awaitPhase(failed)
	if !report.GetMigration().GetTimedOut() {
		t.Errorf("the migration failed with %v", report.GetMigration())
	}
	h.wantStays(source, here, target)
}

// The source reports a copy that does not converge, and the request for it can be withdrawn.
func TestMigration_CancelledWhileNotConverging(t *testing.T) {
	tier.All(t)
	t.Parallel()
	h, source, here, target := newDiverging(t, diverging(0, vmpb.MigrationLimits_TIMEOUT_POLICY_PAUSE))
	h.controller.Change(func(a *authority) { a.migrate = true })
	_, err := h.controller.AwaitReport(t.Context(), func(report *vmpb.ReportStateRequest) bool {
		return report.GetMigration().GetConvergence() == convergenceFailing
	})
	must(t, err)
	h.wantStays(source, here, target)
}

// wantStays withdraws the request for a migration, and checks that the guest keeps running on the source.
func (h *testCluster) wantStays(source *member, here *counting, target *member) {
	h.t.Helper()
	h.controller.Change(func(a *authority) { a.migrate = false })
	target.wantEnd(vmpb.EndNotArrived)
	here.keepsRunning()
	source.wantAlive()
	source.kill()
	here.toTheEnd()
	source.wantAll(here.last)
}
